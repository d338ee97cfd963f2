//! Compares the mirrored types with values measured by a C compiler.
#![cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux"
))]

use std::collections::{BTreeMap, BTreeSet};

use rocade_abi::layout;

type Members = BTreeMap<String, (usize, Option<usize>)>;

struct Measured {
    aggregates: BTreeMap<String, (usize, usize)>,
    members: BTreeMap<String, Members>,
    enumerators: BTreeMap<String, i64>,
    derived: BTreeMap<String, String>,
}

/// Parses one number of the data file.
fn figure<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("a decimal figure")
}

/// Returns the layouts of the target's processor.
fn measured() -> Measured {
    let mut data = Measured {
        aggregates: BTreeMap::new(),
        members: BTreeMap::new(),
        enumerators: BTreeMap::new(),
        derived: BTreeMap::new(),
    };
    read_table(&mut data, "layouts.txt");
    read_table(&mut data, "layouts-65.txt");
    if cfg!(target_arch = "aarch64") {
        let before = data.count();
        read_table(&mut data, "layouts-aarch64.txt");
        assert_eq!(data.count(), before, "a line that replaces no other");
    }
    data
}

impl Measured {
    fn count(&self) -> usize {
        let members: usize = self.members.values().map(BTreeMap::len).sum();
        self.aggregates.len() + members + self.enumerators.len() + self.derived.len()
    }
}

/// Reads a data file. A line replaces one of the same name.
fn read_table(data: &mut Measured, name: &str) {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/abi/");
    let text = std::fs::read_to_string(format!("{directory}{name}"));
    let text = text.expect("the measured layouts are in the repository");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        match columns.as_slice() {
            ["S", name, size, align] => {
                let figures = (figure(size), figure(align));
                data.aggregates.insert((*name).to_owned(), figures);
            }
            ["F", aggregate, member, offset, size] => {
                data.members
                    .entry((*aggregate).to_owned())
                    .or_default()
                    .insert((*member).to_owned(), (figure(offset), size.parse().ok()));
            }
            ["E", _, name, value] => {
                data.enumerators.insert((*name).to_owned(), figure(value));
            }
            ["D", name, value] => {
                data.derived.insert((*name).to_owned(), (*value).to_owned());
            }
            _ => panic!("unexpected line: {line}"),
        }
    }
}

/// Returns the C name of a member that has another name in the mirror.
fn c_member_name(aggregate: &str, member: &str) -> String {
    let member = member.strip_prefix("r#").unwrap_or(member);
    match (aggregate, member) {
        ("struct ibv_mw", "mw_type") => "type".to_owned(),
        _ => member.to_owned(),
    }
}

#[test]
fn every_aggregate_has_the_measured_layout() {
    let data = measured();
    let mut compared = 0;
    for mirror in layout::all().into_iter().flatten() {
        let (size, align) = *data
            .aggregates
            .get(mirror.name)
            .unwrap_or_else(|| panic!("{} was never measured", mirror.name));
        assert_eq!(
            (mirror.size, mirror.align),
            (size, align),
            "{}",
            mirror.name
        );

        let expected = &data.members[mirror.name];
        let mut seen = BTreeSet::new();
        for field in mirror.fields {
            let name = c_member_name(mirror.name, field.name);
            let (offset, size) = *expected
                .get(&name)
                .unwrap_or_else(|| panic!("{}.{name} is not a member in C", mirror.name));
            assert_eq!(field.offset, offset, "offset of {}.{name}", mirror.name);
            if let Some(size) = size {
                assert_eq!(field.size, size, "size of {}.{name}", mirror.name);
            }
            seen.insert(name);
        }
        let missing: Vec<&String> = expected
            .keys()
            .filter(|name| !seen.contains(*name))
            .collect();
        assert!(missing.is_empty(), "{} lacks {missing:?}", mirror.name);
        compared += seen.len();
    }
    assert!(compared > 400, "only {compared} members compared");
}

#[test]
fn every_enumerator_has_the_measured_value() {
    let data = measured();
    for (name, value) in layout::enumerators() {
        assert_eq!(Some(value), data.enumerators.get(*name), "{name}");
    }
}

#[test]
fn container_rule_of_the_extended_context() {
    let data = measured();
    let offset = std::mem::offset_of!(rocade_abi::verbs_context, context);
    assert_eq!(offset.to_string(), data.derived["context_to_verbs_context"]);
    let sz = size_of::<rocade_abi::verbs_context>();
    assert_eq!(sz.to_string(), data.derived["sz_required_by_query_port"]);
    let compat = rocade_abi::VERBS_ABI_IS_EXTENDED as usize;
    assert_eq!(format!("{compat:#x}"), data.derived["abi_compat_extended"]);
}

/// Checks the members whose offset alone identifies them. `wr_atomic_write` ends the structure, and
/// `wr_flush` of newer headers follows it.
//= WRX-12 type=test
#[test]
fn newer_builders_are_behind_the_older_ones() {
    let last = if cfg!(target_arch = "aarch64") {
        352
    } else {
        344
    };
    let data = measured();
    let members = &data.members["struct ibv_qp_ex"];
    assert_eq!(members["wr_atomic_write"], (last, Some(8)));
    assert_eq!(
        std::mem::offset_of!(rocade_abi::ibv_qp_ex, wr_atomic_write),
        last
    );
    // `wr_flush`.
    assert_eq!(size_of::<rocade_abi::ibv_qp_ex>(), last + 8);
    assert_eq!(data.aggregates["struct ibv_qp_ex"].0, last + 8);
}
