//! The generated version script and Rust code.

use std::fmt::Write;

use crate::table::{Export, Implementation, Stub, TableError, VersionNode};

/// Returns a version script with empty nodes, which declares only names and parents.
#[must_use]
pub fn version_script(nodes: &[VersionNode]) -> String {
    let mut script = String::new();
    for node in nodes {
        let parent = node
            .parent
            .as_ref()
            .map_or_else(String::new, |parent| format!(" {parent}"));
        script.push_str(&format!("{} {{}}{parent};\n", node.name));
    }
    script
}

/// Returns Rust code with a trampoline per export for `target_arch`.
///
/// # Errors
/// [`TableError::Architecture`] if there is no trampoline for it.
pub fn exports_rs(exports: &[Export], target_arch: &str) -> Result<String, TableError> {
    let jump = match target_arch {
        "x86_64" => "jmp",
        "aarch64" => "b",
        other => return Err(TableError::Architecture(other.to_owned())),
    };
    let mut code = String::from("// Generated from exports.tsv.\n\n");
    for (index, export) in exports.iter().enumerate() {
        let at = if export.default { "@@" } else { "@" };
        let versioned = format!("{}{at}{}", export.symbol, export.version);
        // The tag is local to the library, because rustc's own version script hides symbols that it
        // does not list.
        let tag = format!("rocade_export_{index}_{}", export.symbol);
        let target = match &export.implementation {
            Implementation::Data => {
                write_data(&mut code, &tag, &versioned);
                continue;
            }
            Implementation::Function(path) => path.clone(),
            Implementation::Stub(stub) => {
                let name = format!("stub_{index}");
                code.push_str(&stub_code(*stub, &name, &export.symbol));
                name
            }
        };
        write_trampoline(&mut code, jump, &tag, &versioned, &target);
    }
    Ok(code)
}

fn write_trampoline(code: &mut String, jump: &str, tag: &str, versioned: &str, target: &str) {
    let lines = [
        "core::arch::global_asm!(".to_owned(),
        "    \".text\",".to_owned(),
        "    \".p2align 4\",".to_owned(),
        format!("    \".globl {tag}\","),
        format!("    \".type {tag}, %function\","),
        format!("    \"{tag}:\","),
        format!("    \"{jump} {{target}}\","),
        format!("    \".size {tag}, . - {tag}\","),
        format!("    \".symver {tag}, {versioned}\","),
        format!("    target = sym {target},"),
        ");".to_owned(),
    ];
    for line in lines {
        code.push_str(&line);
        code.push('\n');
    }
}

fn write_data(code: &mut String, tag: &str, versioned: &str) {
    let directives = [
        ".section .data,\\\"aw\\\"".to_owned(),
        format!(".globl {tag}"),
        format!(".type {tag}, %object"),
        format!("{tag}: .byte 0"),
        format!(".size {tag}, 1"),
        format!(".symver {tag}, {versioned}"),
        ".text".to_owned(),
    ];
    code.push_str("core::arch::global_asm!(\n");
    for directive in directives {
        // Writing to a String cannot fail.
        let _ = writeln!(code, "    \"{directive}\",");
    }
    code.push_str(");\n");
}

/// Returns a function per export, so that `unsupported` is given the name of the called function.
fn stub_code(stub: Stub, name: &str, symbol: &str) -> String {
    let (result, value) = match stub {
        Stub::Int => ("core::ffi::c_int", "libc::EOPNOTSUPP"),
        Stub::Pointer => ("*mut core::ffi::c_void", "core::ptr::null_mut()"),
        // As wide as a register, so that it is -1 both as `int` and as `ssize_t`.
        Stub::Negative => ("isize", "-1"),
        Stub::NegativeErrno => ("isize", "-(libc::EOPNOTSUPP as isize)"),
        Stub::Zero => return format!("extern \"C\" fn {name}() -> usize {{\n    0\n}}\n"),
        Stub::Void => return format!("extern \"C\" fn {name}() {{}}\n"),
    };
    format!(
        "extern \"C\" fn {name}() -> {result} {{\n    \
         crate::unsupported(\"{symbol}\");\n    {value}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(symbol: &str, default: bool, implementation: Implementation) -> Export {
        Export {
            symbol: symbol.to_owned(),
            version: "A_1.1".to_owned(),
            default,
            implementation,
        }
    }

    #[test]
    fn nodes_name_their_parents() {
        let nodes = [
            VersionNode {
                name: "A_1.0".to_owned(),
                parent: None,
                repeats: Vec::new(),
            },
            VersionNode {
                name: "A_1.1".to_owned(),
                parent: Some("A_1.0".to_owned()),
                repeats: Vec::new(),
            },
        ];
        assert_eq!(version_script(&nodes), "A_1.0 {};\nA_1.1 {} A_1.0;\n");
    }

    #[test]
    fn default_versions_have_two_ats() {
        let table = [
            export("f", true, Implementation::Function("crate::f".to_owned())),
            export("f", false, Implementation::Stub(Stub::Int)),
            export("d", true, Implementation::Data),
        ];
        let code = exports_rs(&table, "x86_64").expect("known architecture");
        assert!(code.contains(".symver rocade_export_0_f, f@@A_1.1\""));
        assert!(code.contains(".symver rocade_export_1_f, f@A_1.1\""));
        assert!(code.contains("rocade_export_2_d: .byte 0"));
        assert_eq!(code.matches("crate::unsupported(\"f\")").count(), 1);
    }

    #[test]
    fn each_architecture_has_its_own_jump() {
        let table = [export(
            "f",
            true,
            Implementation::Function("crate::f".to_owned()),
        )];
        assert!(exports_rs(&table, "x86_64").is_ok_and(|code| code.contains("\"jmp {target}\"")));
        assert!(exports_rs(&table, "aarch64").is_ok_and(|code| code.contains("\"b {target}\"")));
        let unknown = Err(TableError::Architecture("z80".to_owned()));
        assert_eq!(exports_rs(&table, "z80"), unknown);
    }
}
