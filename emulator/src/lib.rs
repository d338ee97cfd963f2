//! An RDMA NIC in userspace.
//!
//! An [`Engine`] is the hardware of one process. It owns the links, the queue pairs, the registered
//! memory and one background thread. [`Engine::open_device`] returns a [`Context`], which creates
//! the verbs objects: [`Pd`], [`Mr`], [`Cq`], [`CompChannel`], [`Srq`], [`Xrcd`], [`Qp`].
//!
//! Packets are real RoCEv2 over UDP port 4791. The protocol is in `rocade-transport`. This crate
//! adds memory, time, threads and sockets.
//!
//! Layers, top down:
//! - [`objects`](Context): the verbs objects.
//! - `engine`: progress, in polling threads and in the background thread.
//! - `state`: the state that both share, of queues and routes.
//! - `memory`: keys, access checks and copies.
//! - [`link`] and [`steering`]: sockets.
//! - [`broker`]: many processes on one address.
//! - [`config`]: the devices.
//! - [`statistics`]: the values that a process shows to others.
//! - [`probe`]: what the system allows.

pub mod broker;
mod clock;
pub mod cm;
pub mod config;
mod counters;
mod cpu_idle;
mod engine;
mod error;
mod failure;
pub mod faults;
mod fdpass;
#[cfg(any(fuzzing, all(test, not(loom))))]
pub mod fuzzing;
mod gsi;
mod hca;
#[cfg(all(test, not(loom)))]
mod hostsim;
mod inherited;
mod journal;
pub mod limits;
pub mod link;
mod memory;
mod nearest;
pub mod notice;
mod objects;
pub mod probe;
pub mod random;
mod raw;
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub mod simulated_host;
mod state;
pub mod statistics;
pub mod steering;
mod sync;
mod sys;
pub mod trace;
mod tuning;
mod xrc_shared;

/// The name under which the helpers of `tests/common` import this crate, for unit tests.
#[cfg(all(test, not(loom)))]
extern crate self as rocade_emulator;

pub use clock::Stopwatch;
pub use config::{BrokerMode, DeviceConfig, EngineConfig, Likeness, LinkMode};
pub use counters::EngineCounters;
pub use engine::Engine;
pub use engine::failures::{FailureReport, RefusedKey, report_failures_to};
pub use error::VerbsError;
pub use hca::{DeviceAttr, DeviceFacts, DeviceInfo, GidEntry, GidKind, PortAttr, PortFacts};
pub use inherited::{StartPermit, settle_thread, spawn_thread};
pub use objects::{
    Advice, Ah, CompChannel, CompCounter, Connection, Context, Cq, CqInitAttr, CrossChannel,
    Datagram, DciInit, DctInitAttr, Dm, Flow, Grh, Mr, Mw, Pd, Qp, QpInitAttr, RecvPoster, Rereg,
    ReregFlags, RxHash, SendPoster, Srq, SrqInitAttr, SrqPoster, ToDct, Wq, WqState, Xrcd,
};
pub use raw::{
    EthFields, FlowAttr, FlowKind, FlowSpec, Ipv4Fields, Ipv6Fields, MAX_FLOW_SPECS, Masked,
    PortFields, RSS_FIELDS, RSS_KEY_LEN,
};
pub use rocade_transport::{
    AccessError, AccessFlags, AddressVector, Bind, BindError, Block, Calc, CalcOp, CompleteTo,
    Completion, CountedOps, Counters, DciStreams, DctStatus, DropReason, FailedSend, Failure,
    ImmOrInv, Indirect, Layout, MASKED_SIZES, MAX_LOG_ERRORED, MAX_LOG_STREAMS, MAX_TSO,
    MAX_TSO_HEADER, MaskedOp, ModifyError, Operands, PostError, QpAttr, QpAttrMask, QpCap, QpState,
    QpType, ReceiveBuffers, Reduction, RefusedRequest, Remap, RemoteAccess, RemoteRange, SendFlags,
    SendOp, SendWr, Sge, SrqAttr, SrqError, Srqn, Tso, WcFlags, WcOpcode, WcStatus, WideOperand,
    Window, WindowKind, experimental_rule, transition_rule,
};
pub use rocade_wire::{
    Feth, Gid, Guid, Lkey, Mtu, NakCode, Operation, OperationKind, Pkey, Psn, Qkey, Qpn, Rkey,
};
pub use state::{
    AsyncEvent, AsyncEventKind, CounterUnit, CounterValue, EventElement, EventWaiter, FileId,
    WaitStep, XrcdInitAttr,
};
#[doc(hidden)]
pub use sys::hand_over_until_readable;
pub use sys::{FileSizeErrors, IgnoredInterrupts};
