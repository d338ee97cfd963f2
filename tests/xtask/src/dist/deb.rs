//! The package of Debian and Ubuntu, made by dpkg-deb of the tree below `/usr`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Plan, archive::gzip, at, build::GLIBC, copy, execute, files_below, output, settle,
    tree::DOCUMENTS, write,
};

/// The contact of the package, as Debian's tools require one.
pub(super) const MAINTAINER: &str = "Rocade developers <rocade@packages.invalid>";

const SUMMARY: &str = "RDMA NIC in userspace, with drop-in verbs libraries";

const DESCRIPTION: &str =
    " Rocade runs unmodified RDMA programs without RDMA hardware, kernel module
 or root. It has real RoCEv2 packets over UDP, and shared memory between the
 processes of a host.
 .
 `rocade run -- ib_write_bw` runs a program with emulated devices. The
 libraries are in a directory of their own, and the system's own stay as
 they are.
";

/// Messages of lintian that do not apply, each with the reason.
const OVERRIDES: &str = "\
# The bug of the archive that the package would close does not exist: it is not in the archive.
rocade: initial-upload-closes-no-bugs
# The address of the maintainer must not reach a stranger.
rocade: bogus-mail-host Maintainer rocade@packages.invalid
rocade: bogus-mail-host-in-debian-changelog rocade@packages.invalid *
";

/// The completion of zsh in the tree, and in the package.
const ZSH: [&str; 2] = [
    "share/zsh/site-functions/_rocade",
    "share/zsh/vendor-completions/_rocade",
];

/// Makes the package. Returns its path.
pub(super) fn make(plan: &Plan) -> Result<PathBuf, String> {
    let stage = plan.stage("deb")?;
    let usr = stage.join("usr");
    for file in files_below(&plan.tree())? {
        let place = if file == ZSH[0] { ZSH[1] } else { &*file };
        copy(&plan.tree().join(&file), &usr.join(place))?;
        if place.starts_with("share/man/") {
            gzip(&usr.join(place))?;
        }
    }
    documents(plan, &usr.join("share/doc/rocade"))?;
    write(&usr.join("share/lintian/overrides/rocade"), OVERRIDES)?;
    control(plan, &stage)?;
    settle(&stage)?;
    date_all(plan, &stage)?;
    let target = plan.out.join(format!(
        "rocade_{}-1_{}.deb",
        plan.version, plan.arch.debian
    ));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", plan.epoch.to_string());
    build.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]);
    execute(
        build
            .arg(&stage)
            .arg(&target)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(target)
}

/// Returns the name in the tree of a file of the package below `/usr`.
pub(super) fn place_in_tree(file: &str) -> &str {
    match file {
        zsh if zsh == ZSH[1] => ZSH[0],
        page if page.starts_with("share/man/") => page.trim_end_matches(".gz"),
        other => other,
    }
}

/// Replaces the documents of the tree by those that Debian requires.
fn documents(plan: &Plan, dir: &Path) -> Result<(), String> {
    for name in DOCUMENTS.into_iter().filter(|name| *name != "README.md") {
        fs::remove_file(dir.join(name)).map_err(at(dir))?;
    }
    write(&dir.join("copyright"), copyright(plan)?)?;
    copy(&plan.root.join("CHANGELOG.md"), &dir.join("changelog"))?;
    gzip(&dir.join("changelog"))?;
    let mut date = Command::new("date");
    let date = output(
        date.args(["-u", "-R", &format!("--date=@{}", plan.epoch)])
            .env("LC_ALL", "C"),
    )?;
    let version = &plan.version;
    let entry = format!(
        "rocade ({version}-1) unstable; urgency=medium\n\n  * Version {version}: see changelog.gz.\n\n \
         -- {MAINTAINER}  {date}"
    );
    write(&dir.join("changelog.Debian"), entry)?;
    gzip(&dir.join("changelog.Debian")).map(drop)
}

/// The licences, in the format that Debian's tools read.
fn copyright(plan: &Plan) -> Result<String, String> {
    let file = plan.root.join("LICENSE-MIT");
    let text = fs::read_to_string(&file).map_err(at(&file))?;
    let line = |line: &str| match line {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    };
    let holder = text.lines().find(|line| line.starts_with("Copyright"));
    let holder = holder.unwrap_or("the authors of Rocade");
    let holder = holder
        .trim_start_matches("Copyright")
        .trim_start_matches(" (c)")
        .trim();
    let mit: String = text.lines().map(line).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: rocade\n\nFiles: *\nCopyright: {holder}\nLicense: MIT or Apache-2.0\n\n\
         License: MIT\n{mit}\nLicense: Apache-2.0\n On Debian systems, the text of the licence is \
         in\n /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

fn control(plan: &Plan, stage: &Path) -> Result<(), String> {
    let mut size = 0;
    let mut sums = Command::new("md5sum");
    for file in files_below(stage)? {
        let path = stage.join(&file);
        if !path.is_symlink() {
            size += fs::metadata(&path).map_err(at(&path))?.len().div_ceil(1024);
            sums.arg(&file);
        }
    }
    let text = output(sums.current_dir(stage))?;
    write(&stage.join("DEBIAN/md5sums"), text)?;
    let control = format!(
        "Package: rocade\nVersion: {}-1\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: libc6 (>= {GLIBC}), libgcc-s1\n\
         Suggests: ibverbs-utils, perftest, rdmacm-utils\nSection: net\nPriority: optional\n\
         Description: {SUMMARY}\n{DESCRIPTION}",
        plan.version, plan.arch.debian
    );
    write(&stage.join("DEBIAN/control"), control)
}

/// Sets the times of everything.
fn date_all(plan: &Plan, stage: &Path) -> Result<(), String> {
    let time = format!("--date=@{}", plan.epoch);
    let mut touch = Command::new("find");
    touch
        .arg(stage)
        .args(["-exec", "touch", "--no-dereference", &time, "{}", "+"]);
    execute(&mut touch)
}
