//! The container image, as `docker load`, podman and tools of OCI read it.
//!
//! The lower layer has the C library and a shell of Debian, the upper one the tree below `/usr`. So
//! `rocade demo` runs in the image, and `COPY --from=rocade /usr /usr` brings it to another image.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::{Value, json};

use super::{
    Plan,
    archive::{gzip, sha256, tar_of},
    at, clear, contents, copy, copy_tree, execute, files_below, output, settle, write,
};
use crate::aarch64::Cross;

/// The packages of Debian in the lower layer.
const PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "busybox-static"];

/// Beginnings of the files of the lower layer, which needs no conversions and no documents.
/// Those of libraries depend on the processor.
const KEPT: [&str; 3] = ["bin/busybox", "usr/bin/busybox", "usr/share/doc/"];

/// Commands of the shell in the image, by links.
const SHELL: [&str; 8] = ["sh", "ls", "cat", "env", "id", "ip", "sleep", "mkdir"];

/// A layer in the directory of blobs.
struct Layer {
    /// The checksum of the compressed archive, its name.
    digest: String,
    len: u64,
    /// The checksum of the archive.
    diff: String,
}

/// Makes the image.
pub(super) fn make(plan: &Plan, cross: Option<&Cross>) -> Result<(), String> {
    let stage = plan.stage("image")?;
    let layout = stage.join("layout");
    let layers = [
        layer(plan, &layout, &base(plan, &stage, cross)?)?,
        layer(plan, &layout, &upper(plan, &stage)?)?,
    ];
    let config = blob(&layout, &config(plan, &layers)?)?;
    let list: Vec<Value> = layers
        .iter()
        .map(|layer| described("layer.v1.tar+gzip", &layer.digest, layer.len))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", &config.0, config.1),
        "layers": list,
    });
    let manifest = blob(&layout, &manifest)?;
    let mut entry = described("manifest.v1+json", &manifest.0, manifest.1);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": plan.version });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    write(&layout.join("index.json"), index.to_string())?;
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    write(&layout.join("oci-layout"), version.to_string())?;
    // Older versions of docker read this list.
    let path = |digest: &str| format!("blobs/sha256/{digest}");
    let files: Vec<String> = layers.iter().map(|layer| path(&layer.digest)).collect();
    let tags = [
        format!("rocade:{}", plan.version),
        "rocade:latest".to_owned(),
    ];
    let old = json!([{ "Config": path(&config.0), "RepoTags": tags, "Layers": files }]);
    write(&layout.join("manifest.json"), old.to_string())?;
    let target = plan.out.join(format!("{}-image.tar", plan.prefix()));
    tar_of(plan, &layout, ".", &target)?;
    contents::below(&target, contents::MAX_IMAGE)
}

fn described(kind: &str, digest: &str, len: u64) -> Value {
    json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": format!("sha256:{digest}"),
        "size": len,
    })
}

fn config(plan: &Plan, layers: &[Layer]) -> Result<Value, String> {
    let diffs: Vec<String> = layers
        .iter()
        .map(|one| format!("sha256:{}", one.diff))
        .collect();
    let mut date = Command::new("date");
    let format = format!("--date=@{}", plan.epoch);
    let created = output(date.args(["-u", &format, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(json!({
        "created": created.trim(),
        "architecture": plan.arch.debian,
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin:/bin"],
            "Entrypoint": ["/usr/bin/rocade"],
            "Cmd": ["demo"],
            "Labels": {
                "org.opencontainers.image.title": "rocade",
                "org.opencontainers.image.version": plan.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": diffs },
        "history": [
            { "created": created.trim(), "created_by": "Debian: libc6, libgcc-s1, busybox-static" },
            { "created": created.trim(), "created_by": "rocade" },
        ],
    }))
}

/// Unpacks the C library and the shell of this machine's release of Debian.
fn base(plan: &Plan, stage: &Path, cross: Option<&Cross>) -> Result<std::path::PathBuf, String> {
    let (downloads, all, dir) = (stage.join("debs"), stage.join("all"), stage.join("base"));
    for dir in [&downloads, &all, &dir] {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    let cached = plan.work.join("debs").join(plan.arch.name);
    if !cached.is_dir() {
        let part = cached.with_extension("part");
        clear(&part)?;
        download(&part, cross)?;
        fs::rename(&part, &cached).map_err(at(&cached))?;
    }
    for deb in files_below(&cached)? {
        let mut unpack = Command::new("dpkg-deb");
        execute(unpack.arg("-x").arg(cached.join(&deb)).arg(&all))?;
    }
    let gnu = plan.arch.gnu();
    let libraries = ["lib/GNU/ld-", "lib/GNU/lib", "usr/lib/GNU/lib"];
    let mut kept = libraries.map(|begin| begin.replace("GNU", &gnu)).to_vec();
    kept.push(plan.arch.loader.to_owned());
    kept.extend(KEPT.map(str::to_owned));
    for file in files_below(&all)? {
        let is_kept = kept.iter().any(|begin| file.starts_with(begin))
            && (!file.starts_with("usr/share/doc/") || file.ends_with("/copyright"));
        if is_kept {
            copy(&all.join(&file), &dir.join(&file))?;
        }
    }
    let bin = dir.join("bin");
    for name in SHELL {
        std::os::unix::fs::symlink("busybox", bin.join(name)).map_err(at(&bin))?;
    }
    write(&dir.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    for name in ["tmp", "proc", "sys", "dev"] {
        fs::create_dir_all(dir.join(name)).map_err(at(&dir))?;
    }
    settle(&dir)?;
    let shared = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(dir.join("tmp"), shared).map_err(at(&dir))?;
    Ok(dir)
}

/// Downloads the packages of the lower layer.
fn download(dir: &Path, cross: Option<&Cross>) -> Result<(), String> {
    if let Some(cross) = cross {
        return cross.download(dir, &PACKAGES);
    }
    let mut get = Command::new("apt-get");
    get.args(["-q", "-o", "APT::Sandbox::User=root", "download"]);
    execute(get.args(PACKAGES).current_dir(dir))
}

fn upper(plan: &Plan, stage: &Path) -> Result<std::path::PathBuf, String> {
    let dir = stage.join("upper");
    copy_tree(&plan.tree(), &dir.join("usr"))?;
    settle(&dir)?;
    Ok(dir)
}

/// Adds a directory as a layer.
fn layer(plan: &Plan, layout: &Path, dir: &Path) -> Result<Layer, String> {
    let tar = dir.with_extension("tar");
    let mut command = Command::new("tar");
    // Unlike that of a package, a layer has directories that all users write to.
    command
        .args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"])
        .args(["--owner=0", "--group=0"])
        .arg(format!("--mtime=@{}", plan.epoch))
        .arg("--file")
        .arg(&tar)
        .arg("--directory")
        .args([dir, Path::new(".")]);
    execute(&mut command)?;
    let diff = sha256(&tar)?;
    let packed = gzip(&tar)?;
    let digest = sha256(&packed)?;
    let len = fs::metadata(&packed).map_err(at(&packed))?.len();
    copy(&packed, &layout.join("blobs/sha256").join(&digest))?;
    Ok(Layer { digest, len, diff })
}

/// Adds a document. Returns its checksum and length.
fn blob(layout: &Path, document: &Value) -> Result<(String, u64), String> {
    let text = document.to_string();
    let blobs = layout.join("blobs/sha256");
    let new = blobs.join("new");
    write(&new, &text)?;
    let digest = sha256(&new)?;
    let target = blobs.join(&digest);
    fs::rename(&new, &target).map_err(at(&target))?;
    let len = u64::try_from(text.len()).map_err(|error| error.to_string())?;
    Ok((digest, len))
}
