//! The versions of the C library that files need, which the tag of a wheel promises.

use std::{fmt, path::Path, process::Command};

use super::{Plan, output, tree::binaries};

/// A version of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Reads `2.28` or `2.2.5`, of which two numbers count.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(str::parse);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        numbers
            .all(|rest| rest.is_ok())
            .then_some(Self(major, minor))
    }
}

/// Prints the highest version that each file of the tree needs.
///
/// # Errors
/// A file that needs a later version than `promised`, or a private symbol.
pub(super) fn check(plan: &Plan, promised: Option<&str>) -> Result<(), String> {
    let promised = promised.and_then(Version::parse);
    for file in binaries(&plan.tree())? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let highest = of_file(&file)?;
        match highest {
            Some(version) if promised.is_some_and(|promised| version > promised) => {
                return Err(format!(
                    "{name} needs glibc {version}, a later one than promised"
                ));
            }
            Some(version) => println!("{}: {name} needs glibc {version}", plan.arch.name),
            None => println!("{}: {name} needs no glibc", plan.arch.name),
        }
    }
    Ok(())
}

fn of_file(file: &Path) -> Result<Option<Version>, String> {
    let mut readelf = Command::new("readelf");
    let text = output(readelf.args(["--version-info", "--wide"]).arg(file))?;
    highest(&text).map_err(|error| format!("{}: {error}", file.display()))
}

/// The highest version among the needs that readelf lists.
fn highest(text: &str) -> Result<Option<Version>, String> {
    let mut found = None;
    for rest in text.split("Name: GLIBC_").skip(1) {
        let word = rest.split_whitespace().next().unwrap_or_default();
        let version = Version::parse(word).ok_or_else(|| format!("needs GLIBC_{word}"))?;
        found = found.max(Some(version));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: &str = "Version needs section '.gnu.version_r' contains 2 entries:\n \
        Addr: 0x0000000000000a08  Offset: 0x000a08  Link: 4 (.dynstr)\n  \
        000000: Version: 1  File: libc.so.6  Cnt: 3\n  \
        0x0010:   Name: GLIBC_2.9  Flags: none  Version: 4\n  \
        0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 3\n  \
        0x0030:   Name: GLIBC_2.17  Flags: none  Version: 2\n  \
        000040: Version: 1  File: libgcc_s.so.1  Cnt: 1\n  \
        0x0050:   Name: GCC_4.3.0  Flags: none  Version: 5\n";

    #[test]
    fn numbers_decide_which_version_is_the_highest() {
        assert_eq!(highest(NEEDS).unwrap(), Some(Version(2, 17)));
        assert_eq!(highest("No version information found").unwrap(), None);
        assert!(Version::parse("2.9") < Version::parse("2.28"));
        assert_eq!(Version(2, 28).to_string(), "2.28");
    }

    #[test]
    fn a_private_symbol_is_an_error() {
        let private = NEEDS.replace("GLIBC_2.17", "GLIBC_PRIVATE");
        let error = highest(&private).unwrap_err();
        assert!(error.contains("GLIBC_PRIVATE"), "{error}");
    }
}
