//! The package of Fedora, RHEL, SUSE and others, made by rpmbuild of the tree below `/usr`.

use std::{fs, process::Command};

use super::{
    Plan, archive::gzip, at, build::GLIBC, copy_tree, deb::MAINTAINER, execute, files_below,
    output, settle, write,
};

/// Directories of shells, which stay while another package has files in them.
const SHARED: [&str; 6] = [
    "bash-completion",
    "bash-completion/completions",
    "fish",
    "fish/vendor_completions.d",
    "zsh",
    "zsh/site-functions",
];

/// Makes the package.
pub(super) fn make(plan: &Plan) -> Result<(), String> {
    let stage = plan.stage("rpm")?;
    let files = stage.join("files");
    copy_tree(&plan.tree(), &files.join("usr"))?;
    for file in files_below(&files)? {
        if file.starts_with("usr/share/man/") {
            gzip(&files.join(&file))?;
        }
    }
    settle(&files)?;
    let spec = stage.join("rocade.spec");
    write(&spec, spec_of(plan, &files_below(&files)?)?)?;
    let mut build = Command::new("rpmbuild");
    build.env("SOURCE_DATE_EPOCH", plan.epoch.to_string());
    let target = format!("{}-linux", plan.arch.name);
    build.args(["-bb", "--quiet", "--nodeps", "--target", &target]);
    for (name, value) in [
        ("_topdir", stage.join("top").display().to_string()),
        ("_files", files.display().to_string()),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        ("_build_id_links", "none".to_owned()),
        ("_binary_payload", "w9.gzdio".to_owned()),
        // The files are stripped, and their bytes stay.
        ("__os_install_post", "%{nil}".to_owned()),
    ] {
        build.args(["--define", &format!("{name} {value}")]);
    }
    execute(build.arg(&spec))?;
    let name = format!("rocade-{}-1.{}.rpm", plan.version, plan.arch.name);
    let built = stage.join("top/RPMS").join(plan.arch.name).join(&name);
    fs::rename(&built, plan.out.join(&name)).map_err(at(&built))
}

/// The description of the package. It provides no `libibverbs.so.1`, because programs do not find
/// that library without `rocade run`.
fn spec_of(plan: &Plan, files: &[String]) -> Result<String, String> {
    let listed = files
        .iter()
        .map(|file| match file.rsplit_once("share/doc/rocade/") {
            Some((_, name)) if name.starts_with("LICENSE") => format!("%license /{file}\n"),
            Some(_) => format!("%doc /{file}\n"),
            None => format!("/{file}\n"),
        });
    let version = &plan.version;
    let mut date = Command::new("date");
    let date = date.args(["-u", &format!("--date=@{}", plan.epoch), "+%a %b %d %Y"]);
    let date = output(date.env("LC_ALL", "C"))?;
    let date = date.trim();
    Ok(format!(
        "Name: rocade\nVersion: {version}\nRelease: 1\n\
         Summary: RDMA NIC in userspace, with drop-in verbs libraries\n\
         License: MIT OR Apache-2.0\nGroup: System/Libraries\n\
         Packager: {MAINTAINER}\nAutoReqProv: no\nRequires: glibc >= {GLIBC}\n\n\
         %description\n\
         Rocade runs unmodified RDMA programs without RDMA hardware, kernel module or\n\
         root. `rocade run -- ib_write_bw` runs a program with emulated devices. The\n\
         libraries are in a directory of their own.\n\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a %{{_files}}/. %{{buildroot}}/\n\n\
         %files\n{}%dir /usr/lib/rocade\n%dir /usr/share/rocade\n%dir /usr/share/rocade/include\n\
         %dir /usr/share/rocade/include/infiniband\n\
         %dir /usr/share/rocade/include/infiniband/verbs_exp\n%dir /usr/share/doc/rocade\n{}\n\
         %changelog\n* {date} {MAINTAINER} - {version}-1\n- Version {version}: see CHANGELOG.md\n",
        SHARED
            .map(|dir| format!("%dir /usr/share/{dir}\n"))
            .concat(),
        listed.collect::<String>()
    ))
}
