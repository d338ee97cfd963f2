//! The headers for programs that use more than the standard verbs.

/// Embeds headers of `verbs-api/include`, by their paths there. A link leads to that directory,
/// because a package of Cargo contains only files below its own.
macro_rules! headers {
    ($( $path:literal ),+ $(,)?) => {
        &[$( ($path, include_str!(concat!("../include/", $path))) ),+]
    };
}

/// The path of each header below an include directory, and its text.
pub(crate) const HEADERS: &[(&str, &str)] = headers![
    "infiniband/verbs_exp.h",
    "infiniband/verbs_exp/base.h",
    "infiniband/verbs_exp/completion.h",
    "infiniband/verbs_exp/cross.h",
    "infiniband/verbs_exp/dct.h",
    "infiniband/verbs_exp/device.h",
    "infiniband/verbs_exp/qp.h",
    "infiniband/verbs_exp/send.h",
    "infiniband/verbs_exp/umr.h",
    "infiniband/verbs_xrc.h",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_header_is_installed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut found = BTreeSet::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let name = path.strip_prefix(&root).unwrap();
                    found.insert(name.to_str().unwrap().to_owned());
                }
            }
        }
        let listed = HEADERS.iter().map(|(path, _)| (*path).to_owned());
        assert_eq!(listed.collect::<BTreeSet<_>>(), found);
    }
}
