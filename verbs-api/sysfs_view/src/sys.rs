//! System calls that std lacks: namespaces, mounts, and a trial in a child.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

/// The highest capability number that is tried. Linux has 41 capabilities now.
const MAX_CAPABILITY: libc::c_ulong = 63;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Returns the effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call can fail or touches memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Replaces the namespaces in `flags` (`CLONE_NEW*`) with new ones.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call accesses no memory of this process.
    check(unsafe { libc::unshare(flags) })
}

/// Mounts `source` at `target` with MS_BIND and MS_REC.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    // SAFETY: both are terminated strings that outlive the call. Type and data may be NULL for a
    // bind mount.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            ptr::null(),
            libc::MS_BIND | libc::MS_REC,
            ptr::null(),
        )
    })
}

/// Keeps new mounts out of other namespaces. Mounts made outside still appear here.
pub(crate) fn stop_propagation() -> io::Result<()> {
    // SAFETY: terminated strings. Source, type and data are not used with these flags.
    check(unsafe {
        libc::mount(
            ptr::null(),
            c"/".as_ptr(),
            ptr::null(),
            libc::MS_SLAVE | libc::MS_REC,
            ptr::null(),
        )
    })
}

/// Mounts an empty tmpfs at `target`.
pub(crate) fn mount_tmpfs(target: &Path) -> io::Result<()> {
    mount_tmpfs_as(target, libc::MS_NOSUID | libc::MS_NOEXEC)
}

/// Mounts an empty tmpfs at `target`, for files that can be executed.
pub(crate) fn mount_tmpfs_with_programs(target: &Path) -> io::Result<()> {
    mount_tmpfs_as(target, libc::MS_NOSUID)
}

fn mount_tmpfs_as(target: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: all strings are terminated and live across the call.
    check(unsafe {
        libc::mount(
            c"rocade".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            c"mode=0755".as_ptr().cast(),
        )
    })
}

/// Removes the mount at `target`, with those on top of it.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: a terminated string that lives across the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) })
}

/// Drops every capability for the programs that this process executes.
pub(crate) fn drop_capabilities_at_exec() -> io::Result<()> {
    // SAFETY: the call accesses no memory of this process.
    check(unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    })?;
    for capability in 0..=MAX_CAPABILITY {
        // SAFETY: as above. EINVAL marks the end of the numbers.
        if let Err(error) = check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) }) {
            return if error.raw_os_error() == Some(libc::EINVAL) {
                Ok(())
            } else {
                Err(error)
            };
        }
    }
    Ok(())
}

/// Returns true if `trial` succeeds in a child with its own namespaces. The process must have a
/// single thread, because the child of any other must not even allocate.
pub(crate) fn succeeds_in_a_child(trial: impl FnOnce() -> bool) -> io::Result<bool> {
    // SAFETY: the process has one thread, so the child is a complete copy. The child ends with
    // `_exit`, which runs no exit handlers of the parent.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trial));
            let code = i32::from(!matches!(result, Ok(true)));
            // SAFETY: does not return.
            unsafe { libc::_exit(code) }
        }
        child => loop {
            let mut status = 0;
            // SAFETY: `child` is a child of this process that was not waited for, and `status` is
            // writable.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
                return Ok(status == 0);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        },
    }
}
