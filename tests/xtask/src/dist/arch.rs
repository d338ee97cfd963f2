//! The processors that packages are made for.

/// A processor by the names that each kind of package has for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arch {
    /// The name of Linux, rpm and wheels.
    pub(crate) name: &'static str,
    /// The name of Debian, and of container images.
    pub(crate) debian: &'static str,
    /// The place of the dynamic linker, in Debian's package of the C library.
    pub(crate) loader: &'static str,
}

pub(crate) const X86_64: Arch = Arch {
    name: "x86_64",
    debian: "amd64",
    loader: "lib64/",
};

pub(crate) const AARCH64: Arch = Arch {
    name: "aarch64",
    debian: "arm64",
    loader: "lib/ld-linux-aarch64.so.1",
};

/// All of them.
const ALL: [&Arch; 2] = [&X86_64, &AARCH64];

impl Arch {
    /// Returns the processors with these names, or all of them if there are no names.
    ///
    /// # Errors
    /// The first unknown name.
    pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Self>, String> {
        if names.is_empty() {
            return Ok(ALL.to_vec());
        }
        let find = |name: &String| {
            let found = ALL.into_iter().find(|arch| arch.name == name);
            found.ok_or_else(|| format!("--arch {name}: known are x86_64 and aarch64"))
        };
        names.iter().map(find).collect()
    }

    /// Returns true if this machine runs the programs without an emulator.
    pub(crate) fn is_native(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    /// The target of rustc.
    pub(crate) fn triple(&self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    /// The name of GNU's compilers, of zig, and of Debian's directories for libraries.
    pub(crate) fn gnu(&self) -> String {
        format!("{}-linux-gnu", self.name)
    }

    /// A compiler or a tool of binutils for files of this processor.
    pub(crate) fn tool(&self, name: &str) -> String {
        if self.is_native() {
            name.to_owned()
        } else {
            format!("{}-{name}", self.gnu())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_processors() {
        assert_eq!(Arch::named(&[]).unwrap(), [&X86_64, &AARCH64]);
        let one = Arch::named(&["aarch64".to_owned()]).unwrap();
        assert_eq!(one, [&AARCH64]);
        assert_eq!(one[0].triple(), "aarch64-unknown-linux-gnu");
        let error = Arch::named(&["riscv64".to_owned()]).unwrap_err();
        assert!(error.contains("riscv64"), "{error}");
    }
}
