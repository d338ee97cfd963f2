//! Checks that the docs alias every libibverbs call, or that `docs/rust.md` explains its absence.

use std::fs;
use std::path::Path;

/// Inline functions of `<infiniband/verbs.h>`, which the library does not export.
const IN_LINE: &str = "ibv_advise_mr ibv_alloc_dm ibv_alloc_mw ibv_alloc_null_mr ibv_alloc_parent_domain ibv_alloc_td \
    ibv_attach_counters_point_flow ibv_bind_mw ibv_close_xrcd ibv_create_counters ibv_create_cq_ex ibv_create_flow \
    ibv_create_flow_action_esp ibv_create_qp_ex ibv_create_rwq_ind_table ibv_create_srq_ex ibv_create_wq ibv_dealloc_mw \
    ibv_dealloc_td ibv_destroy_counters ibv_destroy_flow ibv_destroy_flow_action ibv_destroy_rwq_ind_table ibv_destroy_wq \
    ibv_end_poll ibv_free_dm ibv_get_srq_num ibv_inc_rkey ibv_is_qpt_supported ibv_memcpy_from_dm ibv_memcpy_to_dm \
    ibv_modify_cq ibv_modify_flow_action_esp ibv_modify_qp_rate_limit ibv_modify_wq ibv_next_poll ibv_open_qp ibv_open_xrcd \
    ibv_poll_cq ibv_post_recv ibv_post_send ibv_post_srq_ops ibv_post_srq_recv ibv_post_wq_recv ibv_query_device_ex \
    ibv_query_gid_ex ibv_query_gid_table ibv_query_rt_values_ex ibv_read_counters ibv_reg_dm_mr ibv_req_notify_cq \
    ibv_start_poll ibv_wr_abort ibv_wr_atomic_write ibv_wr_complete ibv_wr_flush ibv_wr_send_tso ibv_wr_start";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the contents of all files below a directory.
fn read_all(directory: &Path) -> String {
    let entries = fs::read_dir(directory).expect("the crate has sources");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .map(|path| {
            if path.is_dir() {
                read_all(&path)
            } else {
                read(&path)
            }
        })
        .collect()
}

/// Returns the calls that the newest version of the library exports.
fn exported(table: &str) -> impl Iterator<Item = &str> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split('\t');
        let (name, node, default) = (fields.next()?, fields.next()?, fields.next()?);
        let is_public = !node.contains("PRIVATE") && !name.starts_with('_');
        (is_public && default == "yes").then_some(name)
    })
}

#[test]
fn every_call_has_a_rust_form_or_a_reason() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = read(&own.join("../../tests/abi/symbols-exported-libibverbs.tsv"));
    let docs = read(&own.join("../../docs/rust.md"));
    let (_, list) = docs
        .split_once("## What has no Rust form")
        .expect("docs/rust.md names the calls");
    let sources = read_all(&own.join("src"));
    let names: Vec<&str> = exported(&table).chain(IN_LINE.split_whitespace()).collect();
    assert!(names.len() > 120, "{names:?}");
    for name in names {
        let is_found = sources.contains(&format!("alias = \"{name}\""));
        let is_listed = list.contains(&format!("`{name}`"));
        assert!(
            is_found || is_listed,
            "{name} has neither an alias nor a reason"
        );
    }
}
