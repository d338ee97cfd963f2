//! `cargo xtask dist --check`: each package is installed, used and removed in clean roots.

use std::{collections::BTreeMap, fs, process::Command, time::Instant};

use super::{
    Plan, again, at, emulated, execute,
    report::{self, Row, Run},
    tools,
};
use crate::{
    aarch64::Cross,
    roots::{self, Root},
    tally::Tally,
};

/// The releases of Debian.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// The packages with the programs that are tried, with libraries whose names have no version, and
/// with the tools of other packages.
const PROGRAMS: &str = "ibverbs-utils,perftest,libibverbs-dev,librdmacm-dev,python3,\
    python3-venv,rpm,util-linux";

/// A package, and what installs and removes it. `$VERSION` is the version.
struct Package {
    ending: &'static str,
    user: &'static str,
    install: &'static str,
    /// The command `rocade`.
    command: &'static str,
    remove: &'static str,
}

const PACKAGES: [Package; 4] = [
    Package {
        ending: "linux.tar.gz",
        user: "user",
        install: "mkdir ~/x && tar -C ~/x --strip-components=1 -xf /mnt/FILE",
        command: "~/x/bin/rocade",
        remove: "rm -r ~/x",
    },
    Package {
        ending: ".deb",
        user: "root",
        install: "dpkg -i /mnt/FILE",
        command: "rocade",
        remove: "dpkg --purge rocade",
    },
    Package {
        ending: ".rpm",
        user: "root",
        // Debian's rpm knows no package of the system, and that of Debian 12 wants to be forced.
        install: "rpm -i --nodeps /mnt/FILE || rpm -i --nodeps --force-debian /mnt/FILE",
        command: "rocade",
        remove: "rpm -e --nodeps rocade",
    },
    Package {
        ending: ".whl",
        user: "user",
        install: "python3 -m venv ~/v && ~/v/bin/pip install --quiet --no-index /mnt/FILE",
        command: "~/v/bin/rocade",
        // pip leaves empty directories.
        remove: "~/v/bin/pip uninstall --quiet --yes rocade \
                 && test -z \"$(find ~/v -iname '*rocade*' ! -type d)\" && rm -r ~/v",
    },
];

/// The programs that run with each package. `ROCADE` is the command. The client tries again only
/// while its server does not listen. If one of the two fails, all that both said is printed.
///
/// `-F`: on a busy machine perftest may fail to measure the frequency of its clock, and without
/// that option the client ends before the last exchange with the server.
pub(super) const RUNS: [(&str, &str); 5] = [
    (
        "ib_write_bw",
        "failed() { cat ~/client ~/server >&2; exit 1; }; \
      ROCADE run -- ib_write_bw -F -n 100 > ~/server 2>&1 & server=$!; n=0; \
      until ROCADE run -- ib_write_bw -F -n 100 127.0.0.1 > ~/client 2>&1; do \
      n=$((n + 1)); grep -q \"Couldn't connect\" ~/client && test $n -lt 100 || failed; \
      sleep 0.1; done; \
      wait $server || failed; cat ~/client; rm ~/client ~/server",
    ),
    (
        "ibv_devinfo",
        "ROCADE run -- ibv_devinfo | grep -q PORT_ACTIVE",
    ),
    ("rocade demo", "ROCADE demo > /dev/null"),
    ("rocade doctor", "ROCADE doctor"),
    (
        "dlopen",
        "ROCADE run --view none -- python3 -c 'import ctypes\n\
      for name in (\"ibverbs\", \"rdmacm\", \"mlx5\", \"efa\"):\n    \
      library = ctypes.CDLL(f\"lib{name}.so\")\n    \
      versioned = ctypes.CDLL(f\"lib{name}.so.1\")\n\
      count = ctypes.c_int()\n\
      ctypes.CDLL(\"libibverbs.so\").ibv_get_device_list(ctypes.byref(count))\n\
      assert count.value > 0'",
    ),
];

/// Checks all packages, and publishes the table.
pub(super) fn run(plans: &[(Plan, Option<Cross>)], document: bool) -> Result<Tally, String> {
    let (first, _) = plans.first().ok_or("there are no packages")?;
    if let Some(reason) = roots::obstacle() {
        eprintln!("SKIP: packages in clean roots: {reason}");
        return Ok(Tally::SKIP);
    }
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--quiet", "SHA256SUMS"]);
    execute(sums.current_dir(&first.out))?;
    let mut rows = Vec::new();
    let mut lints = Tally::default();
    for (plan, cross) in plans {
        match cross {
            Some(cross) => rows.extend(emulated::rows(plan, cross)?),
            None => rows.extend(native(plan)?),
        }
        rows.push(tools::wheel(plan)?);
        rows.push(tools::image(plan, cross.as_ref())?);
        lints = lints + tools::lint(plan);
    }
    let words = format!("{}\n{}", lengths(plans)?, again::words(first));
    Ok(lints + report::publish(first, &rows, &words, document)?)
}

/// The lengths of libibverbs, which is the largest library.
fn lengths(plans: &[(Plan, Option<Cross>)]) -> Result<String, String> {
    let mut parts = Vec::new();
    for (plan, _) in plans {
        let file = plan.tree().join("lib/rocade/libibverbs.so.1");
        let len = fs::metadata(&file).map_err(at(&file))?.len();
        parts.push(format!("{} KB for {}", len.div_ceil(1000), plan.arch.name));
    }
    Ok(format!("`libibverbs.so.1` has {}.", parts.join(" and ")))
}

/// Tries each package in a root of each release.
fn native(plan: &Plan) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for release in RELEASES {
        let dir = plan.work.join("roots").join(release);
        let root = Root::new(dir, release, PROGRAMS, &plan.out)?;
        for package in &PACKAGES {
            rows.push(check(plan, release, &root, package)?);
        }
    }
    Ok(rows)
}

/// Returns the name of the package with this ending.
pub(super) fn find(plan: &Plan, ending: &str) -> Result<String, String> {
    let mut files = plan.packages()?.into_iter();
    files
        .find(|file| file.ends_with(ending))
        .ok_or_else(|| format!("no package with {ending} in {}", plan.out.display()))
}

/// Installs a package, runs the programs as an ordinary user, and removes it.
fn check(plan: &Plan, release: &str, root: &Root, package: &Package) -> Result<Row, String> {
    let file = find(plan, package.ending)?;
    eprintln!("\n=== {release}: {file}");
    let before = root.files()?;
    let began = Instant::now();
    root.run(package.user, &package.install.replace("FILE", &file))?;
    let mut runs = Vec::new();
    let mut seconds = None;
    for (name, script) in RUNS {
        let result = root.run("user", &script.replace("ROCADE", package.command));
        runs.push(Run::of(name, &result));
        seconds = seconds.or_else(|| Some(began.elapsed().as_secs_f64()));
    }
    root.run(package.user, package.remove)?;
    Ok(Row {
        platform: format!("Debian {release}, x86-64"),
        size: size_of(plan, &file)?,
        package: file,
        seconds,
        runs,
        traces: Some(traces(&before, &root.files()?)),
    })
}

/// The length of a package, in bytes.
pub(super) fn size_of(plan: &Plan, package: &str) -> Result<u64, String> {
    let file = plan.out.join(package);
    Ok(fs::metadata(&file).map_err(at(&file))?.len())
}

/// The differences of a root before and after.
fn traces(before: &BTreeMap<String, (u64, u32)>, after: &BTreeMap<String, (u64, u32)>) -> String {
    let added = after
        .iter()
        .filter(|(name, what)| before.get(*name) != Some(what));
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let names: Vec<&str> = added
        .map(|(name, _)| name)
        .chain(gone)
        .map(String::as_str)
        .collect();
    match names.as_slice() {
        [] => "nothing".to_owned(),
        [first, ..] => format!("{} files, such as {first}", names.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_counted() {
        let of = |names: &[(&str, u64)]| {
            let files = names
                .iter()
                .map(|(name, len)| ((*name).to_owned(), (*len, 0)));
            files.collect::<BTreeMap<_, _>>()
        };
        let before = of(&[("a", 1), ("b", 2)]);
        assert_eq!(traces(&before, &before), "nothing");
        let after = of(&[("a", 1), ("b", 3), ("c", 0)]);
        assert_eq!(traces(&before, &after), "2 files, such as b");
        assert_eq!(
            traces(&after, &of(&[("a", 1), ("b", 3)])),
            "1 files, such as c"
        );
    }
}
