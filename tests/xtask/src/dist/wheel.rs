//! The wheel for Python's pip: `pip install rocade`, then `rocade run -- python3 engine.py`.
//!
//! A wheel has no links. For each name without version it has a small library that is linked with
//! the one that has a version. A program that opens it gets the functions of that library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Plan, archive::sha256, at, build::Zig, copy, execute, files_below, tree::DOCUMENTS, write,
};

/// The tag of a wheel: any Python 3, no interface of Python, and the C library of [`GLIBC`].
///
/// [`GLIBC`]: super::build::GLIBC
fn tag(plan: &Plan) -> String {
    format!("py3-none-manylinux_2_28_{}", plan.arch.name)
}

/// Makes the wheel.
pub(super) fn make(plan: &Plan, zig: &Zig) -> Result<(), String> {
    let stage = plan.stage("wheel")?;
    let name = format!("rocade-{}", plan.version);
    let data = stage.join(format!("{name}.data"));
    let info = stage.join(format!("{name}.dist-info"));
    for file in files_below(&plan.tree())? {
        let from = plan.tree().join(&file);
        match file.strip_prefix("bin/") {
            Some(name) => copy(&from, &data.join("scripts").join(name))?,
            None if from.is_symlink() => stand_in(zig, &from, &data.join("data").join(&file))?,
            // pip keeps the documents beside its own files.
            None if file.starts_with("share/doc/") => {}
            None => copy(&from, &data.join("data").join(&file))?,
        }
    }
    for name in DOCUMENTS {
        copy(&plan.root.join(name), &info.join("licenses").join(name))?;
    }
    fs::remove_file(info.join("licenses/README.md")).map_err(at(&info))?;
    write(&info.join("METADATA"), metadata(plan)?)?;
    let tag = tag(plan);
    let wheel =
        format!("Wheel-Version: 1.0\nGenerator: rocade\nRoot-Is-Purelib: false\nTag: {tag}\n");
    write(&info.join("WHEEL"), wheel)?;
    let record = format!("{name}.dist-info/RECORD");
    let mut lines = String::new();
    for file in files_below(&stage)? {
        let path = stage.join(&file);
        let len = fs::metadata(&path).map_err(at(&path))?.len();
        lines.push_str(&format!(
            "{file},sha256={},{len}\n",
            base64(&sha256(&path)?)?
        ));
    }
    write(&stage.join(&record), format!("{lines}{record},,\n"))?;
    zip(plan, &stage, &plan.out.join(format!("{name}-{tag}.whl")))
}

/// Makes a library with the name of a link that is linked with the link's target.
fn stand_in(zig: &Zig, link: &Path, to: &Path) -> Result<(), String> {
    let source = to.with_extension("c");
    write(&source, "")?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let mut cc = zig.cc();
    cc.args(["-shared", "-nostdlib", "-s", "-Wl,--no-as-needed"])
        .arg(format!("-Wl,-soname,{name}"))
        .args(["-Wl,-rpath,$ORIGIN", "-o"])
        .args([to, source.as_path()])
        .arg(fs::canonicalize(link).map_err(at(link))?);
    execute(&mut cc)?;
    fs::remove_file(&source).map_err(at(&source))
}

fn metadata(plan: &Plan) -> Result<String, String> {
    let file = plan.root.join("README.md");
    let text = fs::read_to_string(&file).map_err(at(&file))?;
    Ok(format!(
        "Metadata-Version: 2.1\nName: rocade\nVersion: {}\n\
         Summary: An RDMA NIC in userspace: runs unmodified RDMA programs without RDMA hardware\n\
         License: MIT OR Apache-2.0\nRequires-Python: >=3.7\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Description-Content-Type: text/markdown\n\n{text}",
        plan.version
    ))
}

/// The digits of a checksum as URL-safe base64 without padding.
fn base64(digits: &str) -> Result<String, String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let nibbles = digits.chars().map(|digit| digit.to_digit(16));
    let nibbles: Option<Vec<u32>> = nibbles.collect();
    let nibbles = nibbles.ok_or_else(|| format!("{digits} is no checksum"))?;
    // Two characters for each three digits.
    let groups = nibbles.chunks(3).map(|group| {
        let value = group.iter().fold(0, |sum, digit| sum << 4 | digit);
        let missing = 3 - group.len();
        let value = value << (4 * missing);
        let all = [value >> 6, value & 63].map(|index| {
            let index = usize::try_from(index).unwrap_or_default();
            char::from(ALPHABET[index])
        });
        all.into_iter()
            .take(2 - usize::from(missing == 2))
            .collect::<String>()
    });
    Ok(groups.collect())
}

/// Packs the directory with fixed times and modes. Python's own module writes the archive.
fn zip(plan: &Plan, dir: &Path, to: &Path) -> Result<(), String> {
    let files: PathBuf = plan.work.join("wheel-files");
    write(&files, files_below(dir)?.join("\n"))?;
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).args([dir, to, &files]);
    execute(python.arg(plan.epoch.to_string()))
}

/// Arguments: directory, archive, list of files, time.
const SCRIPT: &str = r"
import os, sys, time, zipfile
directory, archive, names, epoch = sys.argv[1:]
moment = max(time.gmtime(int(epoch))[:6], (1980, 1, 1, 0, 0, 0))
with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as out:
    # The information about the package comes last, as pip recommends.
    for name in sorted(open(names).read().split('\n'), key=lambda n: ('.dist-info/' in n, n)):
        info = zipfile.ZipInfo(name, moment)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.create_system = 3
        mode = 0o755 if '/scripts/' in name or '.so' in name else 0o644
        info.external_attr = (0o100000 | mode) << 16
        out.writestr(info, open(os.path.join(directory, name), 'rb').read())
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_written_as_python_writes_them() {
        assert_eq!(base64("").unwrap(), "");
        assert_eq!(base64("ff").unwrap(), "_w");
        assert_eq!(base64("0001ff").unwrap(), "AAH_");
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let expected = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(base64(empty).unwrap(), expected);
        assert!(base64("xy").is_err());
    }
}
