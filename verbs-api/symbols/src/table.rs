//! The tables `exports.tsv` and `versions.tsv`.

use std::fmt;

/// The behavior of a symbol without implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stub {
    /// `stub-int`: sets `errno` to `EOPNOTSUPP` and returns it.
    Int,
    /// `stub-ptr`: sets `errno` to `EOPNOTSUPP` and returns NULL.
    Pointer,
    /// `stub-neg`: sets `errno` to `EOPNOTSUPP` and returns -1.
    Negative,
    /// `stub-neg-errno`: sets `errno` to `EOPNOTSUPP` and returns its negative.
    NegativeErrno,
    /// `stub-zero`: returns 0, NULL or false without touching `errno`.
    Zero,
    /// `stub-void`: does nothing.
    Void,
}

/// The source of a symbol's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Implementation {
    /// A Rust function, by its path.
    Function(String),
    /// A stub that fails.
    Stub(Stub),
    /// A data object of one zero byte.
    Data,
}

/// One exported symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Name.
    pub symbol: String,
    /// Version node.
    pub version: String,
    /// True for the default version (`@@`), to which links without a version bind.
    pub default: bool,
    /// The symbol's code.
    pub implementation: Implementation,
}

/// One version node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionNode {
    /// Name.
    pub name: String,
    /// The node that it succeeds.
    pub parent: Option<String>,
    /// The nodes whose symbols it has as well, not as the default versions.
    pub repeats: Vec<String>,
}

/// The reason why a table is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableError {
    /// The line (from 1) has the wrong number of columns.
    Columns(usize),
    /// The line (from 1) has an unknown word in the named column.
    Word(usize, &'static str),
    /// The architecture has no trampoline.
    Architecture(String),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Columns(line) => write!(f, "line {line}: wrong number of columns"),
            Self::Word(line, column) => write!(f, "line {line}: bad value in column {column}"),
            Self::Architecture(arch) => write!(f, "no trampoline for architecture {arch}"),
        }
    }
}

impl std::error::Error for TableError {}

/// Parses `exports.tsv`.
///
/// # Errors
/// A [`TableError`] that names the line.
pub fn exports(text: &str) -> Result<Vec<Export>, TableError> {
    rows(text)
        .map(|(line, columns)| {
            let [symbol, version, default, implementation] = columns.as_slice() else {
                return Err(TableError::Columns(line));
            };
            Ok(Export {
                symbol: name(symbol).ok_or(TableError::Word(line, "symbol"))?,
                version: name(version).ok_or(TableError::Word(line, "version"))?,
                default: match *default {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(TableError::Word(line, "default")),
                },
                implementation: parse_implementation(implementation)
                    .ok_or(TableError::Word(line, "impl"))?,
            })
        })
        .collect()
}

/// Parses `versions.tsv`. The last column may be missing.
///
/// # Errors
/// [`TableError`] names the line.
pub fn versions(text: &str) -> Result<Vec<VersionNode>, TableError> {
    rows(text)
        .map(|(line, columns)| {
            let (node, parent, repeats) = match *columns.as_slice() {
                [node, parent] => (node, parent, ""),
                [node, parent, repeats] => (node, parent, repeats),
                _ => return Err(TableError::Columns(line)),
            };
            let repeats = repeats.split(',').filter(|node| !node.is_empty());
            let repeats = repeats.map(name).collect::<Option<Vec<_>>>();
            Ok(VersionNode {
                name: name(node).ok_or(TableError::Word(line, "version"))?,
                parent: name(parent),
                repeats: repeats.ok_or(TableError::Word(line, "repeats"))?,
            })
        })
        .collect()
}

/// Returns `exports` with the symbols that nodes repeat.
#[must_use]
pub fn with_repeated(exports: Vec<Export>, nodes: &[VersionNode]) -> Vec<Export> {
    let mut all = exports.clone();
    for node in nodes {
        let repeated = exports.iter().filter(|e| node.repeats.contains(&e.version));
        all.extend(repeated.map(|export| Export {
            version: node.name.clone(),
            default: false,
            ..export.clone()
        }));
    }
    all
}

fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| (index + 1, line.split('\t').collect()))
}

/// Returns a symbol, node or path if it has no character that is special to the assembler or
/// linker.
fn name(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned())
}

fn parse_implementation(text: &str) -> Option<Implementation> {
    Some(match text {
        "stub-int" => Implementation::Stub(Stub::Int),
        "stub-ptr" => Implementation::Stub(Stub::Pointer),
        "stub-neg" => Implementation::Stub(Stub::Negative),
        "stub-neg-errno" => Implementation::Stub(Stub::NegativeErrno),
        "stub-zero" => Implementation::Stub(Stub::Zero),
        "stub-void" => Implementation::Stub(Stub::Void),
        "data" => Implementation::Data,
        path => {
            let parts = path
                .split("::")
                .map(|part| name(part).filter(|p| !p.contains('.')));
            parts
                .collect::<Option<Vec<_>>>()
                .map(|_| Implementation::Function(path.to_owned()))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_functions_stubs_and_data() {
        let table = "symbol\tversion\tdefault\timpl\n\
                     f\tA_1.0\tno\tstub-neg\n\
                     f\tA_1.1\tyes\tcrate::file::f\n\
                     d\tA_1.1\tyes\tdata\n";
        let parsed = exports(table).expect("well formed");
        assert_eq!(parsed.len(), 3);
        assert_eq!(
            parsed[0].implementation,
            Implementation::Stub(Stub::Negative)
        );
        assert!(!parsed[0].default);
        let path = "crate::file::f".to_owned();
        assert_eq!(parsed[1].implementation, Implementation::Function(path));
        assert_eq!(parsed[2].implementation, Implementation::Data);
    }

    #[test]
    fn refuses_what_the_assembler_could_misread() {
        let header = "symbol\tversion\tdefault\timpl\n";
        let bad = |row: &str| exports(&format!("{header}{row}\n")).expect_err("malformed");
        assert_eq!(bad("f\tA\tyes"), TableError::Columns(2));
        assert_eq!(bad("f;g\tA\tyes\tdata"), TableError::Word(2, "symbol"));
        assert_eq!(bad("f\t\tyes\tdata"), TableError::Word(2, "version"));
        assert_eq!(bad("f\tA\tmaybe\tdata"), TableError::Word(2, "default"));
        assert_eq!(bad("f\tA\tyes\ta b"), TableError::Word(2, "impl"));
    }

    #[test]
    fn first_node_has_no_parent() {
        let nodes = versions("version\tparent\nA_1.0\t\nA_1.1\tA_1.0\n").expect("well formed");
        assert_eq!(nodes[0].parent, None);
        assert_eq!(nodes[1].parent.as_deref(), Some("A_1.0"));
    }

    #[test]
    fn a_node_has_the_symbols_of_the_nodes_that_it_repeats() {
        let table = "symbol\tversion\tdefault\timpl\nf\tA\tyes\tcrate::f\ng\tB\tyes\tdata\n";
        let nodes = "version\tparent\trepeats\nA\t\nB\t\tA\nC\t\tA,B\n";
        let nodes = versions(nodes).expect("well formed");
        let all = with_repeated(exports(table).expect("well formed"), &nodes);
        let all = all.iter().map(|e| (&*e.symbol, &*e.version, e.default));
        let expected = [
            ("f", "A", true),
            ("g", "B", true),
            ("f", "B", false),
            ("f", "C", false),
            ("g", "C", false),
        ];
        assert_eq!(all.collect::<Vec<_>>(), expected);
        let bad = versions("version\tparent\trepeats\nA\t\tB;C\n").expect_err("malformed");
        assert_eq!(bad, TableError::Word(2, "repeats"));
    }
}
