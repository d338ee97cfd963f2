//! `cargo xtask dist`: packages for users who have no clone (docs/release.md).
//!
//! For each processor, one tree of `bin`, `lib/rocade` and `share` is built for an old C library,
//! and each package is made of it. With the same sources, tools and `SOURCE_DATE_EPOCH`, all files
//! are the same, which [`again`] shows.

mod again;
mod arch;
mod archive;
pub(crate) mod assembly;
mod build;
mod check;
mod contents;
mod deb;
mod emulated;
mod glibc;
mod image;
mod report;
mod rpm;
mod sbom;
mod tools;
mod tree;
mod wheel;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;

use self::arch::Arch;
use crate::{
    aarch64::{self, Cross},
    tally::Tally,
    workspace::Workspace,
};

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
pub(crate) struct DistArgs {
    /// Install, run and remove each package in clean roots of Debian, as root of this machine.
    #[arg(long)]
    check: bool,
    /// Build everything a second time from a copy of the sources, and compare all packages.
    #[arg(long)]
    twice: bool,
    /// Write the table of the check into docs/release.md.
    #[arg(long, requires = "check")]
    write: bool,
    /// A processor, `x86_64` or `aarch64`: both unless told.
    #[arg(long)]
    arch: Vec<String>,
    /// Use the packages that are there.
    #[arg(long)]
    no_build: bool,
    /// The profile of cargo.
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Only the tree, the archive and Debian's package of the debug build that is there, with
    /// checks of their contents.
    #[arg(long, conflicts_with_all = ["check", "twice", "arch", "no_build", "profile"])]
    assemble: bool,
}

/// The properties that all packages share.
pub(crate) struct Plan {
    /// The processor of the packages.
    pub(crate) arch: &'static Arch,
    /// The checkout.
    pub(crate) root: PathBuf,
    /// The directory of the packages.
    pub(crate) out: PathBuf,
    /// The directory of everything else that is made here.
    pub(crate) work: PathBuf,
    /// The version of the workspace.
    pub(crate) version: String,
    /// The time of all files, in seconds since 1970.
    pub(crate) epoch: u64,
}

impl Plan {
    /// `place` is the directory of everything, below that of the build.
    fn new(workspace: &Workspace, arch: &'static Arch, place: &str) -> Result<Self, String> {
        let work = workspace.target().join(place);
        let out = work.join("packages");
        fs::create_dir_all(&out).map_err(at(&out))?;
        Ok(Self {
            arch,
            root: workspace.root().to_owned(),
            out,
            work,
            version: workspace.version().ok_or("Cargo.toml has no version")?,
            epoch: epoch(workspace)?,
        })
    }

    /// The tree that packages are made of.
    pub(crate) fn tree(&self) -> PathBuf {
        self.work.join("tree").join(self.arch.name)
    }

    /// The tree with the symbols of the tree's files.
    pub(crate) fn debug_tree(&self) -> PathBuf {
        self.work.join("debug").join(self.arch.name)
    }

    /// An empty directory of this name.
    pub(crate) fn stage(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.work.join("stage").join(self.arch.name).join(name);
        clear(&dir)?;
        Ok(dir)
    }

    /// The packages for this processor that are there.
    pub(crate) fn packages(&self) -> Result<Vec<String>, String> {
        let names = [
            format!("{}-", self.arch.name),
            format!("{}.", self.arch.name),
        ];
        let debian = format!("_{}.deb", self.arch.debian);
        let mut files = files_below(&self.out)?;
        files.retain(|file| {
            file.ends_with(&debian) || names.iter().any(|name| file.contains(name.as_str()))
        });
        Ok(files)
    }

    /// The beginning of the names of files that have no rules of their own.
    pub(crate) fn prefix(&self) -> String {
        format!("rocade-{}-{}", self.version, self.arch.name)
    }
}

/// Builds the packages, and checks them on request.
pub(crate) fn run(workspace: &Workspace, args: &DistArgs) -> Tally {
    let failed = |reason: String| {
        eprintln!("xtask: {reason}");
        Tally::FAIL
    };
    if args.assemble {
        return assembly::run(workspace, &workspace.target().join("debug"));
    }
    run_all(workspace, args).unwrap_or_else(failed)
}

fn run_all(workspace: &Workspace, args: &DistArgs) -> Result<Tally, String> {
    let mut sum = Tally::default();
    let mut plans = Vec::new();
    for arch in Arch::named(&args.arch)? {
        let plan = Plan::new(workspace, arch, "dist")?;
        // Packages of another processor stay, unless they are built again.
        match cross(workspace, arch) {
            Ok(cross) => {
                if !args.no_build {
                    make(workspace, &plan, cross.as_ref(), &args.profile)?;
                }
                plans.push((plan, cross));
            }
            Err(reason) => {
                eprintln!("SKIP: packages for {}: {reason}", arch.name);
                sum = sum + Tally::SKIP;
            }
        }
    }
    let Some((first, _)) = plans.first() else {
        return Ok(sum);
    };
    archive::sums(first)?;
    print_sizes(first)?;
    sum = sum + Tally::PASS;
    if args.twice {
        sum = sum + again::run(workspace, args, first)?;
    }
    if args.check {
        sum = sum + check::run(&plans, args.write)?;
    }
    Ok(sum)
}

/// Returns the compiler for another processor, or `None` for this one.
///
/// # Errors
/// The reason why there is none.
fn cross(workspace: &Workspace, arch: &Arch) -> Result<Option<Cross>, String> {
    if arch.is_native() {
        return Ok(None);
    }
    if *arch != arch::AARCH64 {
        return Err(format!(
            "there is no compiler for it on {}",
            env::consts::ARCH
        ));
    }
    aarch64::install(workspace, false);
    Cross::find(workspace).map(Some)
}

fn make(
    workspace: &Workspace,
    plan: &Plan,
    cross: Option<&Cross>,
    profile: &str,
) -> Result<(), String> {
    remove_packages(plan)?;
    let zig = build::zig(plan)?;
    let built = build::build(workspace, plan, &zig, cross, profile)?;
    tree::make(plan, &built, cross)?;
    archive::make(plan)?;
    deb::make(plan)?;
    rpm::make(plan)?;
    wheel::make(plan, &zig)?;
    image::make(plan, cross)?;
    sbom::make(workspace, plan)
}

/// Removes the packages of an earlier run.
fn remove_packages(plan: &Plan) -> Result<(), String> {
    for file in plan.packages()? {
        let old = plan.out.join(file);
        fs::remove_file(&old).map_err(at(&old))?;
    }
    Ok(())
}

/// The time of the files: `SOURCE_DATE_EPOCH`, or that of the last commit.
fn epoch(workspace: &Workspace) -> Result<u64, String> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut git = Command::new("git");
            git.args(["log", "-1", "--format=%ct"])
                .current_dir(workspace.root());
            output(&mut git)?
        }
    };
    let number = text.trim().parse();
    number.map_err(|_| format!("SOURCE_DATE_EPOCH is no number of seconds: {text:?}"))
}

fn print_sizes(plan: &Plan) -> Result<(), String> {
    println!("{:>12} bytes  package", "");
    for file in files_below(&plan.out)? {
        let len = fs::metadata(plan.out.join(&file))
            .map_err(at(&plan.out))?
            .len();
        println!("{len:>12}        {file}");
    }
    Ok(())
}

/// Adds the path to an error.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Writes a file, and its directory if necessary.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    fs::write(path, content).map_err(at(path))
}

/// Makes an empty directory.
pub(crate) fn clear(dir: &Path) -> Result<(), String> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(at(dir))?;
    }
    fs::create_dir_all(dir).map_err(at(dir))
}

/// Runs a command. Its output is that of this process.
pub(crate) fn execute(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).status();
    match status.map_err(|error| missing(&name, &error))? {
        status if status.success() => Ok(()),
        status => Err(format!("{command:?}: {status}")),
    }
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| missing(&name, &error))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
}

fn missing(name: &str, error: &io::Error) -> String {
    let package = match name {
        "rpmbuild" => "rpm",
        "python3" => "python3-pip",
        "strip" | "objcopy" | "readelf" => "binutils",
        "dpkg-deb" => "dpkg",
        _ => name,
    };
    format!("failed to run {name}: {error} (Debian: apt-get install {package})")
}

/// The files and links below a directory, sorted, relative to it.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(inner) = dirs.pop() {
        for entry in fs::read_dir(&inner).map_err(at(&inner))? {
            let path = entry.map_err(at(&inner))?.path();
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            } else if let Ok(name) = path.strip_prefix(dir) {
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Copies a file or link, and makes its directory.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    match fs::read_link(from) {
        Ok(target) => std::os::unix::fs::symlink(target, to).map_err(at(to)),
        Err(_) => fs::copy(from, to).map(drop).map_err(at(from)),
    }
}

/// Sets the modes that do not depend on the umask of the one who builds.
pub(crate) fn settle(dir: &Path) -> Result<(), String> {
    let mode = "u=rwX,go=rX";
    execute(Command::new("chmod").args(["--recursive", mode]).arg(dir))
}

/// Copies everything below a directory.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    for file in files_below(from)? {
        copy(&from.join(&file), &to.join(&file))?;
    }
    Ok(())
}
