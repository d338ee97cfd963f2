//! Packages for another processor, which are unpacked and used under QEMU's user emulation.
//!
//! The package managers of that processor do not run here. Debian's programs do, with the same
//! scripts as in the roots of this processor.

use std::{path::Path, process::Command, time::Instant};

use super::{
    Plan,
    check::{find, size_of},
    clear, output,
    report::{Row, Run},
};
use crate::aarch64::Cross;

/// A kind of package, the command that unpacks `$FILE` into `$DIR`, and the place of the command.
const KINDS: [(&str, &str, &str); 4] = [
    (
        "linux.tar.gz",
        "tar -C \"$DIR\" --strip-components=1 -xf \"$FILE\"",
        "bin/rocade",
    ),
    (".deb", "dpkg-deb -x \"$FILE\" \"$DIR\"", "usr/bin/rocade"),
    (
        ".rpm",
        "cd \"$DIR\" && rpm2cpio \"$FILE\" | cpio -idm --quiet",
        "usr/bin/rocade",
    ),
    (".whl", "python3 -c \"$UNPACK\"", "bin/rocade"),
];

/// pip accepts the tag of the wheel for that processor, and the files go where pip puts them.
const UNPACK: &str = r"
import os, re, subprocess, sys, zipfile
wheel, prefix = os.environ['FILE'], os.environ['DIR']
directory, name = os.path.split(wheel)
subprocess.run([sys.executable, '-m', 'pip', 'download', '--quiet', '--no-index', '--no-deps',
                '--find-links', directory, '--only-binary=:all:', '--python-version', '3.11',
                '--platform', re.search('manylinux_[0-9_]+_[a-z0-9_]+(?=[.]whl)', name).group(),
                '--dest', prefix + '/pip', 'rocade'], check=True)
with zipfile.ZipFile(wheel) as archive:
    for info in archive.infolist():
        place = re.match(r'[^/]+[.]data/(data|scripts)/(.*)', info.filename)
        if place:
            to = os.path.join(prefix, {'data': '', 'scripts': 'bin'}[place[1]], place[2])
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(to, 'wb') as file:
                file.write(archive.read(info))
            os.chmod(to, info.external_attr >> 16 & 0o777)
";

/// Programs of [`RUNS`](super::check::RUNS) that the emulated system has.
const TRIED: [&str; 3] = ["ib_write_bw", "ibv_devinfo", "rocade demo"];

/// Unpacks and tries each package.
pub(super) fn rows(plan: &Plan, cross: &Cross) -> Result<Vec<Row>, String> {
    let rows = KINDS
        .iter()
        .map(|(ending, unpack, command)| row(plan, cross, ending, unpack, command));
    rows.collect()
}

fn row(
    plan: &Plan,
    cross: &Cross,
    ending: &str,
    unpack: &str,
    command: &str,
) -> Result<Row, String> {
    let package = find(plan, ending)?;
    eprintln!("\n=== {}: {package}", plan.arch.name);
    let dir = plan
        .work
        .join("roots")
        .join(plan.arch.name)
        .join(ending.trim_matches('.'));
    clear(&dir)?;
    let began = Instant::now();
    let mut shell = Command::new("sh");
    shell
        .args(["-euc", unpack])
        .env("FILE", plan.out.join(&package))
        .env("DIR", &dir);
    let unpacked = output(shell.env("UNPACK", UNPACK));
    let mut runs = vec![Run::of("unpacked", &unpacked)];
    let mut seconds = None;
    let command = dir.join(command);
    for (name, script) in super::check::RUNS {
        if !TRIED.contains(&name) {
            continue;
        }
        let script = script.replace("ROCADE", &command.display().to_string());
        runs.push(Run::of(name, &run(cross, &dir, &script)));
        seconds = seconds.or_else(|| Some(began.elapsed().as_secs_f64()));
    }
    Ok(Row {
        platform: "Debian bookworm, AArch64 under QEMU".to_owned(),
        size: size_of(plan, &package)?,
        package,
        seconds,
        runs,
        traces: None,
    })
}

/// Runs a script in a network and with processes of its own. `home` is its home directory.
pub(super) fn run(cross: &Cross, home: &Path, script: &str) -> Result<String, String> {
    let emulated = cross.emulated(Path::new("sh"))?;
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=10",
        "600",
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    command
        .arg(emulated.get_program())
        .args(emulated.get_args());
    for (name, value) in emulated.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let script = format!("mount -t tmpfs tmpfs /run\n{script}");
    output(command.args(["-euc", &script]).env("HOME", home))
}
