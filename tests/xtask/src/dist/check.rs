//! `cargo xtask dist --check`: each package is installed, used and removed in clean roots.

use std::{
    collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Command, time::Instant,
};

use serde_json::Value;

use super::{Plan, at, clear, execute, files_below, output, root::Root, write};
use crate::{step::succeeds, tally::Tally};

/// The releases of Debian.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

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

/// The programs that run with each package. `ROCADE` is the command.
const RUNS: [(&str, &str); 5] = [
    (
        "ib_write_bw",
        "ROCADE run -- ib_write_bw -n 100 > ~/server & n=0; \
      until ROCADE run -- ib_write_bw -n 100 127.0.0.1 > ~/client 2>&1; do \
      n=$((n + 1)); test $n -lt 100; sleep 0.1; done; wait; cat ~/client; rm ~/client ~/server",
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

/// A line of the table.
struct Row {
    platform: String,
    package: String,
    size: u64,
    /// From nothing to the end of the first `ib_write_bw`.
    seconds: f64,
    runs: String,
    traces: String,
}

/// Checks all packages, and prints the table.
pub(super) fn run(plan: &Plan) -> Result<Tally, String> {
    execute(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(&plan.out),
    )?;
    let mut rows = Vec::new();
    for release in RELEASES {
        let root = Root::new(plan, release)?;
        for package in &PACKAGES {
            rows.push(check(plan, release, &root, package)?);
        }
    }
    rows.push(image(plan)?);
    let mut text = String::from(
        "| platform | package | bytes | seconds to ib_write_bw | run | left behind |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in &rows {
        let Row {
            platform,
            package,
            size,
            seconds,
            runs,
            traces,
        } = row;
        text.push_str(&format!(
            "| {platform} | {package} | {size} | {seconds:.1} | {runs} | {traces} |\n"
        ));
    }
    println!("{text}");
    write(&plan.work.join("check.md"), &text)?;
    let is_good = |row: &&Row| !row.runs.contains("FAILED") && row.traces == "nothing";
    let passed = rows.iter().filter(is_good).count();
    let lints = lint(plan);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(lints
        + Tally {
            passed: count(passed),
            failed: count(rows.len() - passed),
            skipped: 0,
        })
}

fn find(plan: &Plan, ending: &str) -> Result<String, String> {
    let mut files = files_below(&plan.out)?.into_iter();
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
    let mut seconds = 0.0;
    for (name, script) in RUNS {
        let result = root.run("user", &script.replace("ROCADE", package.command));
        if let Err(error) = &result {
            eprintln!("xtask: {name}: {error}");
        }
        runs.push(match result {
            Ok(_) => name.to_owned(),
            Err(_) => format!("{name} FAILED"),
        });
        if seconds == 0.0 {
            seconds = began.elapsed().as_secs_f64();
        }
    }
    root.run(package.user, package.remove)?;
    let traces = traces(&before, &root.files()?);
    let size = fs::metadata(plan.out.join(&file))
        .map_err(at(&plan.out))?
        .len();
    Ok(Row {
        platform: format!("Debian {release}, x86-64"),
        package: file,
        size,
        seconds,
        runs: runs.join(", "),
        traces,
    })
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

/// Unpacks the layers of the image in their order, and runs the demo as an ordinary user.
fn image(plan: &Plan) -> Result<Row, String> {
    let file = find(plan, "image.tar")?;
    eprintln!("\n=== {file}");
    let began = Instant::now();
    let (layout, dir) = (plan.work.join("layout"), plan.work.join("roots/image"));
    clear(&layout)?;
    clear(&dir)?;
    let untar = |archive: &std::path::Path, to: &std::path::Path| {
        execute(
            Command::new("tar")
                .arg("-xf")
                .arg(archive)
                .arg("-C")
                .arg(to),
        )
    };
    untar(&plan.out.join(&file), &layout)?;
    let list = layout.join("manifest.json");
    let list = fs::read_to_string(&list).map_err(at(&list))?;
    let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    for layer in list[0]["Layers"].as_array().into_iter().flatten() {
        untar(&layout.join(layer.as_str().unwrap_or_default()), &dir)?;
    }
    let mode = fs::metadata(dir.join("tmp"))
        .map_err(at(&dir))?
        .permissions()
        .mode();
    let script = "ip link set lo up; mount --bind /proc \"$0/proc\"; \
                  mount --rbind /dev \"$0/dev\"; \
                  exec chroot --userspec=1000:1000 \"$0\" /usr/bin/rocade \"$@\"";
    let run = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "sh", "-euc", script])
            .arg(&dir);
        output(command.args(words))
    };
    let demo = run(&["demo"]);
    let seconds = began.elapsed().as_secs_f64();
    let doctor = run(&["libdir"]);
    let word = |name: &str, result: &Result<String, String>| match result {
        Ok(_) => name.to_owned(),
        Err(error) => {
            eprintln!("xtask: {name}: {error}");
            format!("{name} FAILED")
        }
    };
    let runs = [word("rocade demo", &demo), word("rocade libdir", &doctor)].join(", ");
    let is_shared = mode & 0o1777 == 0o1777;
    Ok(Row {
        platform: "the image itself".to_owned(),
        size: fs::metadata(plan.out.join(&file))
            .map_err(at(&plan.out))?
            .len(),
        package: file,
        seconds,
        runs: if is_shared {
            runs
        } else {
            "FAILED: /tmp is not for all users".to_owned()
        },
        traces: "nothing".to_owned(),
    })
}

/// The message of rpmlint that does not apply: the one who publishes a package signs it.
const RPMLINTRC: &str = "addFilter(\"no-signature\")\n";

/// Runs the checkers of packages that are installed.
fn lint(plan: &Plan) -> Tally {
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
            + if done.is_ok() {
                Tally::PASS
            } else {
                Tally::FAIL
            };
    }
    sum
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
