//! Sections of code that a signal handler can end.
//!
//! A section calls a function. It ends when the function returns, or when a fault inside the
//! section's address range happens. In that case the handler resumes the thread at the end of the
//! section, with the stack pointer that it had there. The functions called inside and the faulting
//! instruction do not matter. To its caller a section is a function that returns once, so that the
//! compiler need not know of any of this.
//!
//! The current section of a thread is a word of thread-local storage that exists from the thread's
//! beginning (the "initial exec" model). A handler may therefore read it at any time.

use std::ffi::c_void;

use super::Fault;

/// Sections are supported on this processor.
pub(super) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The stack frame of a running section.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Frame {
    /// The frame of the enclosing section, or null.
    _outer: *const Self,
    /// The address range of the section.
    pub(super) start: usize,
    pub(super) end: usize,
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden rocade_guard_current",
    ".globl rocade_guard_current",
    ".type rocade_guard_current,@object",
    ".size rocade_guard_current,8",
    ".p2align 3",
    "rocade_guard_current:",
    ".zero 8",
    ".popsection",
    ".pushsection .text.rocade_guard,\"ax\",@progbits",
    // (function, its argument, start, end) -> 0, or 1 after a fault
    ".hidden rocade_guard_run",
    ".globl rocade_guard_run",
    ".type rocade_guard_run,@function",
    ".p2align 4",
    "rocade_guard_run:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // The frame: end, start, outer.
    "push rcx",
    "push rdx",
    "mov rax, qword ptr [rip + rocade_guard_current@GOTTPOFF]",
    "push qword ptr fs:[rax]",
    "mov qword ptr fs:[rax], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    "2:",
    "mov rcx, qword ptr [rip + rocade_guard_current@GOTTPOFF]",
    "pop qword ptr fs:[rcx]",
    "add rsp, 16",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    // The handler resumes the thread here, with the frame's address in rsp.
    ".hidden rocade_guard_landing",
    ".globl rocade_guard_landing",
    "rocade_guard_landing:",
    ".cfi_def_cfa rbp, 16",
    "cld",
    "mov eax, 1",
    "jmp 2b",
    ".cfi_endproc",
    ".size rocade_guard_run, . - rocade_guard_run",
    // () -> the frame of the current section, or null
    ".hidden rocade_guard_frame",
    ".globl rocade_guard_frame",
    ".type rocade_guard_frame,@function",
    "rocade_guard_frame:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + rocade_guard_current@GOTTPOFF]",
    "mov rax, qword ptr fs:[rax]",
    "ret",
    ".cfi_endproc",
    ".size rocade_guard_frame, . - rocade_guard_frame",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden rocade_guard_current",
    ".globl rocade_guard_current",
    ".type rocade_guard_current,@object",
    ".size rocade_guard_current,8",
    ".p2align 3",
    "rocade_guard_current:",
    ".zero 8",
    ".popsection",
    ".pushsection .text.rocade_guard,\"ax\",@progbits",
    // (function, its argument, start, end) -> 0, or 1 after a fault
    ".hidden rocade_guard_run",
    ".globl rocade_guard_run",
    ".type rocade_guard_run,@function",
    ".p2align 4",
    "rocade_guard_run:",
    ".cfi_startproc",
    "sub sp, sp, #192",
    ".cfi_def_cfa_offset 192",
    "stp x29, x30, [sp, #32]",
    ".cfi_offset x29, -160",
    ".cfi_offset x30, -152",
    "stp x19, x20, [sp, #48]",
    "stp x21, x22, [sp, #64]",
    "stp x23, x24, [sp, #80]",
    "stp x25, x26, [sp, #96]",
    "stp x27, x28, [sp, #112]",
    "stp d8, d9, [sp, #128]",
    "stp d10, d11, [sp, #144]",
    "stp d12, d13, [sp, #160]",
    "stp d14, d15, [sp, #176]",
    "add x29, sp, #32",
    "mrs x9, tpidr_el0",
    "adrp x10, :gottprel:rocade_guard_current",
    "ldr x10, [x10, :gottprel_lo12:rocade_guard_current]",
    "add x9, x9, x10",
    // The frame: outer, start, end.
    "ldr x11, [x9]",
    "stp x11, x2, [sp]",
    "str x3, [sp, #16]",
    "mov x12, sp",
    "str x12, [x9]",
    "mov x9, x0",
    "mov x0, x1",
    "blr x9",
    "mov x0, #0",
    "2:",
    "mrs x9, tpidr_el0",
    "adrp x10, :gottprel:rocade_guard_current",
    "ldr x10, [x10, :gottprel_lo12:rocade_guard_current]",
    "add x9, x9, x10",
    "ldr x11, [sp]",
    "str x11, [x9]",
    "ldp x29, x30, [sp, #32]",
    "ldp x19, x20, [sp, #48]",
    "ldp x21, x22, [sp, #64]",
    "ldp x23, x24, [sp, #80]",
    "ldp x25, x26, [sp, #96]",
    "ldp x27, x28, [sp, #112]",
    "ldp d8, d9, [sp, #128]",
    "ldp d10, d11, [sp, #144]",
    "ldp d12, d13, [sp, #160]",
    "ldp d14, d15, [sp, #176]",
    "add sp, sp, #192",
    "ret",
    // The handler resumes the thread here, with the frame's address in sp.
    ".hidden rocade_guard_landing",
    ".globl rocade_guard_landing",
    "rocade_guard_landing:",
    "mov x0, #1",
    "b 2b",
    ".cfi_endproc",
    ".size rocade_guard_run, . - rocade_guard_run",
    // () -> the frame of the current section, or null
    ".hidden rocade_guard_frame",
    ".globl rocade_guard_frame",
    ".type rocade_guard_frame,@function",
    "rocade_guard_frame:",
    ".cfi_startproc",
    "mrs x9, tpidr_el0",
    "adrp x10, :gottprel:rocade_guard_current",
    "ldr x10, [x10, :gottprel_lo12:rocade_guard_current]",
    "ldr x0, [x9, x10]",
    "ret",
    ".cfi_endproc",
    ".size rocade_guard_frame, . - rocade_guard_frame",
    ".popsection",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod code {
    use super::{Frame, c_void};

    unsafe extern "C" {
        pub(super) fn rocade_guard_run(
            body: extern "C" fn(*mut c_void),
            data: *mut c_void,
            start: usize,
            end: usize,
        ) -> usize;
        pub(super) safe fn rocade_guard_frame() -> *const Frame;
        /// Not to be called.
        pub(super) fn rocade_guard_landing();
    }
}

/// On other processors nothing is guarded, and [`SUPPORTED`] is false.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod code {
    use super::{Frame, c_void};

    pub(super) unsafe fn rocade_guard_run(
        body: extern "C" fn(*mut c_void),
        data: *mut c_void,
        _start: usize,
        _end: usize,
    ) -> usize {
        body(data);
        0
    }
    pub(super) fn rocade_guard_frame() -> *const Frame {
        std::ptr::null()
    }
    pub(super) unsafe extern "C" fn rocade_guard_landing() {}
}

/// Runs `body`, which ends early if an access to `len` bytes at `start` faults.
///
/// # Errors
/// [`Fault`]. `body` was left in the middle.
///
/// # Safety
/// `body` consists of plain accesses and arithmetic. It may be left at any access to that range
/// without anything that has to be undone (locks, destructors, values that must change together).
#[inline]
pub(crate) unsafe fn guarded<F: FnMut()>(
    start: usize,
    len: usize,
    mut body: F,
) -> Result<(), Fault> {
    const { assert!(!std::mem::needs_drop::<F>()) };
    extern "C" fn call<F: FnMut()>(data: *mut c_void) {
        // SAFETY: `data` is the closure below, which no other code uses meanwhile.
        let body = unsafe { &mut *data.cast::<F>() };
        body();
    }
    let data = (&raw mut body).cast();
    // SAFETY: `call` takes `data` as it is. The caller promises that it may be left at a fault.
    let left = unsafe { code::rocade_guard_run(call::<F>, data, start, start.wrapping_add(len)) };
    if left == 0 { Ok(()) } else { Err(Fault) }
}

/// The frame of the section that the calling thread is in. May be called in a signal handler.
pub(super) fn current() -> Option<(*const Frame, usize, usize)> {
    let frame = code::rocade_guard_frame();
    // SAFETY: if not null, it is on the stack of this thread, which has not left the section.
    let range = unsafe { frame.as_ref() };
    range.map(|range| (frame, range.start, range.end))
}

/// The address at which a thread that leaves a section is resumed.
pub(super) fn landing() -> usize {
    (code::rocade_guard_landing as *const ()).addr()
}
