//! Programs that do not look for libraries where `rocade run` puts them: they see Rocade all the
//! same, or a warning says that they do not.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use rocade_tests::{
    harness::{Installation, Rig, User},
    or_skip,
    skip::{Reason, missing_command},
};

use crate::LIMIT;

const LIBRARIES: [&str; 5] = ["libibverbs", "librdmacm", "libmlx5", "libefa", "libmana"];
const NOBODY_UID: u32 = 65_534;
/// A device that no default gives.
const DEVICE: [&str; 2] = ["--dev", "odd0=127.0.0.4"];
const SEEN: &str = "device odd0\n1 devices\n";
const WITH_MOUNTS: [User; 2] = [User::Root, User::Ordinary];

/// A rig, and the development files whose libraries have names without version.
fn rig() -> Result<Rig, Reason> {
    let needs = [
        ("gcc", "gcc"),
        ("setpriv", "util-linux"),
        ("unshare", "util-linux"),
    ];
    if let Some(reason) = missing_command(&needs) {
        return Err(reason);
    }
    if system_library("libibverbs.so").is_none() {
        return Err(Reason::Package("libibverbs-dev".to_owned()));
    }
    Rig::loopback(&[])
}

/// The path of a library of the system.
fn system_library(name: &str) -> Option<PathBuf> {
    let triplet = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [triplet, "/usr/lib64".to_owned(), "/usr/lib".to_owned()];
    let mut paths = places.iter().map(|dir| Path::new(dir).join(name));
    paths.find(|path| path.is_file())
}

/// Compiles a program or library.
fn compile(source: &str, target: &str, options: &[&str]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/view");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-o", target])
        .arg(sources.join(source))
        .args(options);
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
}

/// A user's installation with the program `look`, which is linked with libibverbs.
struct Place<'a> {
    rig: &'a Rig,
    user: User,
    files: Installation,
    look: String,
}

impl<'a> Place<'a> {
    fn new(rig: &'a Rig, user: User, options: &[&str]) -> Result<Self, Reason> {
        let files = Installation::new(rig, user, &[])?;
        let look = files.path("look");
        let all = [&["-DLINKED", "-libverbs", "-ldl"], options].concat();
        compile("look.c", &look, &all);
        Ok(Self {
            rig,
            user,
            files,
            look,
        })
    }

    /// Copies the system's libibverbs into a directory that only its user knows.
    fn bundle(&self) -> String {
        let dir = self.files.path("bundle");
        fs::create_dir(&dir).expect("writable");
        let system = system_library("libibverbs.so").expect("the rig has checked it");
        let copy = Path::new(&dir).join("libibverbs.so.1");
        fs::copy(system, copy).expect("the library can be copied");
        dir
    }

    fn run(&self, options: &[&str], words: &[&str]) -> String {
        let options = [&DEVICE, options].concat();
        let process = self.files.start(self.rig, "look", &options, words);
        process.finish(LIMIT).expect_success()
    }

    /// Checks that the words find the device of the run, without a warning.
    fn sees(&self, words: &[&str]) {
        let output = self.run(&[], words);
        let (user, is_quiet) = (self.user, !output.contains("warning"));
        assert!(output.contains(SEEN) && is_quiet, "{user:?}: {output}");
    }
}

/// Calls `check` for each of the users.
fn each(users: &[User], options: &[&str], check: impl Fn(&Place<'_>)) {
    for user in users {
        let rig = or_skip!(rig());
        check(&or_skip!(Place::new(&rig, *user, options)));
    }
}

fn libdir(rig: &Rig) -> String {
    let printed = rig.rocade(&["libdir"]).expect_success();
    printed.trim_end().to_owned()
}

/// NCCL, UCCL and NVSHMEM try the name without version first. With a development package the system
/// has one.
#[test]
fn names_without_version_are_rocades() {
    let rig = or_skip!(rig());
    let look = rig.dir().join("look").to_string_lossy().into_owned();
    compile("look.c", &look, &["-ldl"]);
    let libdir = libdir(&rig);
    for library in LIBRARIES {
        let name = format!("{library}.so");
        let options = [&DEVICE, &["--view", "none"][..]].concat();
        let output = rig.start_with("look", &options, &[&look, &name]);
        let output = output.finish(LIMIT).expect_success();
        let line = format!("library {libdir}/{name}\n");
        assert!(output.contains(&line), "{output}");
        assert!(library != "libibverbs" || output.contains(SEEN), "{output}");
    }
}

/// A program that was linked with these libraries runs with those of the system.
#[test]
fn linking_with_the_directory_makes_ordinary_programs() {
    let rig = or_skip!(rig());
    let look = rig.dir().join("look").to_string_lossy().into_owned();
    let dir = format!("-L{}", libdir(&rig));
    let linked = ["-libverbs", "-lrdmacm", "-ldl"];
    let options = [&["-DLINKED", &*dir, "-Wl,--no-as-needed"], &linked[..]].concat();
    compile("look.c", &look, &options);
    let output = rig.start_plain("look", &[&look]).finish(LIMIT);
    let output = output.expect_success();
    assert!(output.contains("/libibverbs.so.1\n"), "{output}");
    assert!(output.contains("0 devices\n"), "{output}");
    let output = rig.start_with("look", &DEVICE, &[&look]);
    let output = output.finish(LIMIT).expect_success();
    assert!(output.contains(SEEN), "{output}");
}

#[test]
fn an_emptied_environment_keeps_the_devices_of_the_run() {
    each(
        &[User::Root, User::Ordinary, User::Confined],
        &[],
        |place| {
            place.sees(&["env", "-i", &place.look]);
            let script = format!("exec env -i {}", place.look);
            place.sees(&["sh", "-c", &script]);
        },
    );
}

#[test]
fn a_script_may_replace_the_search_path() {
    each(&WITH_MOUNTS, &[], |place| {
        for change in ["LD_LIBRARY_PATH=/opt/lib", "unset LD_LIBRARY_PATH;"] {
            let script = format!("{change} exec {}", place.look);
            place.sees(&["sh", "-c", &script]);
        }
    });
}

#[test]
fn an_absolute_path_of_the_system_leads_to_rocade() {
    each(&WITH_MOUNTS, &[], |place| {
        for name in ["libibverbs.so", "libibverbs.so.1"] {
            let library = system_library(name).expect("the rig has checked it");
            place.sees(&[&place.look, &library.to_string_lossy()]);
        }
    });
}

/// Makes a library that finds its libibverbs in `dir` before `LD_LIBRARY_PATH`.
fn library_with_path(place: &Place<'_>, dir: &str) -> String {
    let library = place.files.path("libuser.so");
    let path = format!("-Wl,--disable-new-dtags,-rpath,{dir}");
    let options = ["-shared", "-fPIC", "-Wl,--no-as-needed", &path, "-libverbs"];
    compile("empty.c", &library, &options);
    library
}

#[test]
fn a_library_with_a_path_of_its_own_leads_to_rocade() {
    each(&WITH_MOUNTS, &[], |place| {
        let bundle = place.bundle();
        let library = library_with_path(place, &bundle);
        // The program is linked with that library, and so its path is known.
        let user = place.files.path("user");
        let path = format!("-Wl,-rpath,{}", place.files.path(""));
        let options = ["-Wl,--no-as-needed", &path, &library, "-ldl"];
        compile("look.c", &user, &options);
        place.sees(&[&user, &library]);
        let script = format!("exec {user} {library}");
        place.sees(&["sh", "-c", &script]);
    });
    each(&[User::Confined], &[], |place| {
        let library = library_with_path(place, &place.bundle());
        let user = place.files.path("user");
        let options = ["-Wl,--no-as-needed", &library, "-ldl"];
        compile("look.c", &user, &options);
        let output = place.run(&[], &[&user, &library]);
        assert!(output.contains("0 devices"), "{output}");
        for part in ["libuser.so, which searches", "DT_RPATH", "LD_PRELOAD="] {
            assert!(output.contains(part), "{part}: {output}");
        }
    });
}

/// Wheels of Python have copies of libraries under names of their own.
#[test]
fn a_package_with_its_own_library_leads_to_rocade() {
    each(&WITH_MOUNTS, &[], |place| {
        let prefix = place.files.path("venv");
        let packages = format!("{prefix}/lib/python3.11/site-packages/engine.libs");
        for dir in [&packages, &format!("{prefix}/bin")] {
            fs::create_dir_all(dir).expect("writable");
        }
        let copy = format!("{packages}/libibverbs-abcdef12.so.1.14.44.0");
        let system = system_library("libibverbs.so").expect("the rig has checked it");
        fs::copy(system, &copy).expect("the library can be copied");
        let python = format!("{prefix}/bin/python3");
        fs::copy(&place.look, &python).expect("the program can be copied");
        place.sees(&[&python, &copy]);
        let script = format!("exec {python} {copy}");
        place.sees(&["sh", "-c", &script]);
    });
}

/// A program may name a directory that no list has.
#[test]
fn a_path_inside_of_a_program_leads_to_rocade() {
    each(&WITH_MOUNTS, &[], |place| {
        let library = format!("{}/libibverbs.so.1", place.bundle());
        let program = place.files.path("opens");
        let name = format!("-DLIBRARY=\"{library}\"");
        compile("look.c", &program, &[&name, "-ldl"]);
        place.sees(&[&program]);
    });
}

/// The place of the library is unknown before the program loads it. The library itself is told to
/// warn then.
#[test]
fn another_libibverbs_is_named_with_a_remedy_that_works() {
    each(&WITH_MOUNTS, &[], |place| {
        let bundle = place.bundle();
        let library = format!("{bundle}/libibverbs.so.1");
        let script = format!("{0} {library}; {0} {library}", place.look);
        let output = place.run(&[], &["sh", "-c", &script]);
        let warnings = output.matches("rocade: warning").count();
        assert_eq!(warnings, 1, "once per run: {output}");
        assert!(output.contains(&format!("look uses {library}")), "{output}");
        let remedy = format!("LD_LIBRARY_PATH={bundle}");
        assert!(output.contains(&remedy), "{output}");
        let command = place.files.path("rocade");
        let script = format!(
            "{remedy} {command} run {} -- {} {library}",
            DEVICE.join(" "),
            place.look
        );
        place.sees(&["sh", "-c", &script]);
    });
    each(&[User::Confined], &[], |place| {
        let script = format!("LD_LIBRARY_PATH={} exec {}", place.bundle(), place.look);
        let output = place.run(&[], &["sh", "-c", &script]);
        assert_eq!(output.matches("rocade: warning").count(), 1, "{output}");
        assert!(output.contains("LD_PRELOAD="), "{output}");
        let preload = place.files.path("libibverbs.so");
        let script = format!("LD_PRELOAD={preload} {script}");
        place.sees(&["sh", "-c", &script]);
    });
}

#[test]
fn rocades_librdmacm_warns_of_another_libibverbs() {
    each(&[User::Confined], &[], |place| {
        let program = place.files.path("cm");
        compile("cm.c", &program, &["-ldl"]);
        let output = place.run(&[], &[&program]);
        assert_eq!(output, "a channel\n");
        let library = format!("{}/libibverbs.so.1", place.bundle());
        let script = format!("LD_PRELOAD={library} exec {program}");
        let output = place.run(&[], &["sh", "-c", &script]);
        assert!(output.contains("no channel"), "{output}");
        let part = format!("has loaded {library} and not Rocade's");
        assert!(output.contains(&part), "{output}");
    });
}

#[test]
fn with_the_devices_of_the_host_the_libraries_of_the_system_stay() {
    each(&WITH_MOUNTS, &[], |place| {
        let output = place.run(&["--show-host"], &["env", "-i", &place.look]);
        assert!(!output.contains("odd0"), "{output}");
    });
}

/// The dynamic linker ignores `LD_LIBRARY_PATH` for these.
#[test]
fn a_program_with_more_privileges_sees_rocade_where_it_may_have_them() {
    let uid = fs::metadata("/proc/self").expect("/proc is there").uid();
    if uid != 0 {
        rocade_tests::skip!("only root can give a program another user");
    }
    each(&WITH_MOUNTS, &[], |place| {
        chown(&place.look, Some(NOBODY_UID - 1), None).expect("root may");
        let mode = Permissions::from_mode(0o4755);
        fs::set_permissions(&place.look, mode).expect("its owner");
        let script = format!("exec {}", place.look);
        place.sees(&["sh", "-c", &script]);
        if place.user == User::Root {
            place.sees(&[&place.look]);
        }
    });
}

#[test]
fn programs_behind_a_shell_that_cannot_see_rocade_are_named() {
    each(&[User::Root, User::Confined], &[], |place| {
        let program = place.files.path("static");
        compile("static.c", &program, &["-static"]);
        let script = format!("cd / && {program}; true");
        let output = place.run(&[], &["sh", "-c", &script]);
        let part = format!("{program} is statically linked");
        assert!(output.contains(&part), "{output}");
        // Static programs without verbs are no matter.
        let other = place.files.path("other");
        compile("empty.c", &other, &["-static", "-DMAIN"]);
        let output = place.run(&[], &["sh", "-c", &other]);
        assert!(!output.contains("warning"), "{output}");
    });
}

/// The dynamic linker of musl refuses to start a program that has to load the preload library.
#[test]
fn programs_for_musl_start_without_the_preload_library() {
    let linker = match std::env::consts::ARCH {
        "aarch64" => "/lib/ld-linux-aarch64.so.1",
        _ => "/lib64/ld-linux-x86-64.so.2",
    };
    each(&[User::Confined], &[], |place| {
        // Only the name of the dynamic linker is musl's, so that the program runs everywhere.
        let musl = place.files.path("ld-musl-x86_64.so.1");
        std::os::unix::fs::symlink(linker, &musl).expect("writable");
        let program = place.files.path("musl");
        let option = format!("-Wl,--dynamic-linker={musl}");
        compile("empty.c", &program, &["-DMAIN", &option]);
        let output = place.run(&[], &[&program]);
        assert!(output.contains("preloaded: nothing"), "{output}");
        assert!(output.contains("is for another C library"), "{output}");
        for script in [program.clone(), format!("exec env -i {program}")] {
            let output = place.run(&[], &["sh", "-c", &script]);
            assert!(output.contains("preloaded: nothing"), "{output}");
        }
        // Other programs get it.
        let ordinary = place.files.path("ordinary");
        compile("empty.c", &ordinary, &["-DMAIN"]);
        let output = place.run(&[], &["sh", "-c", &ordinary]);
        assert!(output.contains("librocade_preload.so"), "{output}");
    });
}
