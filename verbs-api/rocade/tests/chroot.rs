//! `rocade run` in a directory that `chroot` has made the root, as builds of packages have it.
#![expect(clippy::unwrap_used, reason = "in a test")]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod build;

use std::fs;
use std::process::Command;

use build::{Build, Limited as _, text};

/// Makes a root with the programs of the system and the build in it, and runs the command there.
/// The root is no mount point, so that the mounts of a namespace view fail.
const IN_CHROOT: &str = r#"
set -e
for name in usr bin lib lib32 lib64 etc; do
    if [ -L /$name ]; then cp -P /$name "$1"
    elif [ -e /$name ]; then mkdir "$1/$name"; mount --rbind /$name "$1/$name"
    fi
done
mkdir "$1/proc" "$1/build" "$1/tmp"
mount --rbind /proc "$1/proc"
mount --bind "$2" "$1/build"
export ROCADE_RUNTIME_DIR=/tmp/rocade
exec chroot "$1" /build/rocade run --dev a=127.0.45.9 -- env
"#;

#[test]
fn the_preload_library_is_found_after_mounts_have_failed() {
    let build = Build::with_libraries();
    let in_namespace = ["--map-root-user", "--mount"];
    let allowed = Command::new("unshare").args(in_namespace).arg("true").run();
    if !allowed.status.success() {
        rocade_skip::skip!("cannot make a mount namespace");
    }
    let root = build.path("root");
    fs::create_dir(&root).unwrap();
    let mut command = Command::new("unshare");
    command
        .args(in_namespace)
        .args(["sh", "-c", IN_CHROOT, "sh"]);
    command.arg(&root).arg(build.path(""));
    command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin");
    let output = command.run();
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}{errors}");
    assert!(
        shown.contains("LD_PRELOAD=/build/librocade_preload.so"),
        "{shown}{errors}"
    );
    assert!(!errors.contains("will find nothing"), "{errors}");
}
