//! The list of all crates in the packages, in the format of CycloneDX.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Plan, output, write};
use crate::workspace::Workspace;

/// Writes the list for the crates that the command and the libraries contain.
pub(super) fn make(workspace: &Workspace, plan: &Plan) -> Result<(), String> {
    let mut cargo = workspace.cargo(&["metadata", "--format-version=1", "--locked"]);
    cargo.args(["--filter-platform", &plan.arch.triple()]);
    let text = output(&mut cargo)?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let components = components(&metadata, plan)?;
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "rocade",
                "version": plan.version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components,
    });
    let file = format!("{}-sbom.cdx.json", plan.prefix());
    write(&plan.out.join(file), format!("{list:#}\n"))
}

/// The crates that the packages of the workspace need at run time, without those of tests and of
/// build scripts.
fn components(metadata: &Value, plan: &Plan) -> Result<Vec<Value>, String> {
    let broken = || "cargo metadata: unexpected output".to_owned();
    let list = |value: &Value| value.as_array().cloned().ok_or_else(broken);
    let id = |value: &Value| value["id"].as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])?
        .into_iter()
        .map(|package| (id(&package), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])?
        .into_iter()
        .map(|node| (id(&node), node))
        .collect();
    let is_root = |package: &&Value| {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        package["source"].is_null()
            && manifest.starts_with(&*plan.root.join("verbs-api").to_string_lossy())
    };
    let mut queue: Vec<String> = packages.values().filter(is_root).map(id).collect();
    let mut seen = BTreeSet::new();
    while let Some(one) = queue.pop() {
        if !seen.insert(one.clone()) {
            continue;
        }
        let dependencies = nodes.get(&one).map_or(&Value::Null, |node| &node["deps"]);
        for dependency in dependencies.as_array().into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.clone().any(|kind| kind["kind"].is_null()) {
                queue.extend(dependency["pkg"].as_str().map(str::to_owned));
            }
        }
    }
    let found = seen.iter().filter_map(|one| packages.get(one));
    let mut all: Vec<Value> = found.map(component).collect();
    all.sort_by_key(|one| one["purl"].as_str().unwrap_or_default().to_owned());
    Ok(all)
}

fn component(package: &Value) -> Value {
    let text = |name: &str| package[name].as_str().unwrap_or_default();
    let (name, version) = (text("name"), text("version"));
    // An old spelling of the registry has a slash in place of OR.
    let licence = text("license").replace('/', " OR ");
    json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{ "expression": licence }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_is_listed() {
        let package = |name: &str, source: Value| {
            json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                "source": source, "manifest_path": format!("/x/verbs-api/{name}/Cargo.toml"),
            })
        };
        let needs =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let registry = json!("registry");
        let metadata = json!({
            "packages": [
                package("rocade", Value::Null), package("used", registry.clone()),
                package("tested", registry.clone()), package("building", registry),
            ],
            "resolve": { "nodes": [
                { "id": "rocade", "deps": [
                    needs("used", Value::Null), needs("tested", json!("dev")),
                    needs("building", json!("build")),
                ] },
            ] },
        });
        let plan = Plan {
            arch: &super::super::arch::X86_64,
            root: "/x".into(),
            out: "/x/out".into(),
            work: "/x/work".into(),
            version: "0.1.0".to_owned(),
            epoch: 0,
        };
        let found = components(&metadata, &plan).unwrap();
        let names: Vec<&str> = found
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        assert_eq!(names, ["rocade", "used"]);
        assert_eq!(found[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }
}
