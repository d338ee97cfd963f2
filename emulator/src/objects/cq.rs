//! Completion queues.

use std::fmt::Write as _;
use std::sync::Arc;

use rocade_transport::{Completion, Time};

use super::comp_channel::CompChannel;
use super::context::ContextInner;
use crate::engine::{ChannelKind, Registration, note_completions};
use crate::error::VerbsError;
use crate::faults::{Limit, Verb};
use crate::limits;
use crate::state::{CqInner, CqRing};

/// A completion queue (`ibv_cq`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    pub(super) context: Arc<ContextInner>,
    pub(super) inner: Arc<CqInner>,
    _registration: Arc<Registration>,
}

/// The attributes of a new CQ (`ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CqInitAttr<'a> {
    /// Number of entries, at least 1. Exactly this number is granted.
    pub cqe: u32,
    /// The channel of its events.
    pub channel: Option<&'a CompChannel>,
    /// Completion vector, below [`limits::COMP_VECTORS`].
    pub vector: u32,
    /// Identifies the CQ in events.
    pub cookie: u64,
    /// A completion that finds no room replaces the oldest one, which is lost. Otherwise the CQ is
    /// overrun.
    pub ignores_overrun: bool,
}

impl Cq {
    pub(super) fn new(
        context: Arc<ContextInner>,
        attr: CqInitAttr<'_>,
    ) -> Result<Self, VerbsError> {
        let CqInitAttr {
            cqe,
            channel,
            vector,
            cookie,
            ignores_overrun,
        } = attr;
        //= CQ-01
        let like = context.hca.config.like;
        if cqe == 0 || cqe > like.max_cqe() {
            return Err(VerbsError::InvalidArgument("cqe"));
        }
        if vector >= limits::COMP_VECTORS {
            return Err(VerbsError::InvalidArgument("comp_vector"));
        }
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, &context)) {
            return Err(VerbsError::InvalidArgument("channel of another context"));
        }
        let inner = CqInner::new(
            Arc::clone(&context.events),
            Arc::clone(context.engine.scheduler.service_queue()),
            channel.map(|channel| Arc::clone(&channel.inner)),
            cookie,
            CqRing::new(cqe as usize, ignores_overrun),
            like,
        );
        let (of, ctxn) = (Arc::downgrade(&inner), context.registration.number());
        let inventory = context.engine.tables.inventory();
        let registration = inventory.register(&context.hca, None, move |number, text| {
            let (cqe, users) = of
                .upgrade()
                .map_or((0, 0), |cq| (cq.capacity(), cq.users().count()));
            let _ = write!(text, "cq cqn={number} ctxn={ctxn} cqe={cqe} users={users}");
        });
        Ok(Self {
            context,
            inner,
            _registration: Arc::new(registration),
        })
    }

    /// Takes completions in order and returns how many. Drives the links if there are none.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        self.poll_with(out.len(), |index, completion| out[index] = completion)
    }

    /// Like [`Cq::poll`] for at most `max` completions. Passes each to `each` with its position.
    pub fn poll_with(&self, max: usize, mut each: impl FnMut(usize, Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        let engine = &self.context.engine;
        engine.scheduler.polled();
        let mut taken = self.inner.take(max, &mut each);
        // Another thread may have received a completion meanwhile.
        if taken == 0 && (engine.progress_inline(Some(&self.inner)) || !self.inner.is_empty()) {
            taken = self.inner.take(max, &mut each);
        }
        if taken > 0 {
            note_completions();
        }
        taken
    }

    /// Returns the time of a simulation and the time of its next event, or `None` if the network is
    /// real.
    #[must_use]
    pub fn simulated_time(&self) -> Option<(Time, Option<Time>)> {
        let engine = &self.context.engine;
        engine
            .host
            .is_simulated()
            .then(|| (engine.host.now(), engine.next_event()))
    }

    /// Advances the time of a simulation. Events up to then happen with the next poll.
    pub fn move_simulated_time(&self, to: Time) {
        self.context.engine.host.move_to(to);
    }

    /// Returns true if there are no completions to take.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) const fn inner(&self) -> &Arc<CqInner> {
        &self.inner
    }

    /// Takes one completion.
    pub fn poll_one(&self) -> Option<Completion> {
        let mut one = None;
        self.poll_with(1, |_, completion| one = Some(completion));
        one
    }

    /// Requests an event for the next completion, or for the next solicited one.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the CQ has no completion channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.arm(solicited_only)?;
        let engine = &self.context.engine;
        let Some(events) = self.inner.channel().map(|channel| &channel.events) else {
            return Ok(());
        };
        match events.outer() {
            Some(outer) if events.is_in_loop() => {
                engine.watch_in_loop(outer, ChannelKind::Completions, false);
            }
            outer => {
                outer.inspect(|outer| engine.leave_loop(outer));
                engine.leave_for_event(events.expects_wait(|| engine.host.now().as_ns()));
            }
        }
        Ok(())
    }

    /// Requests an event as [`Cq::req_notify`] does, for a thread that waits in
    /// [`CompChannel::wait_readable`](super::CompChannel::wait_readable) or
    /// [`Engine::poll_descriptors`](crate::Engine::poll_descriptors) next.
    ///
    /// # Errors
    /// As [`Cq::req_notify`].
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.context.enter(Verb::ReqNotifyCq)?;
        if self.inner.arm(solicited_only) {
            return Ok(());
        }
        let why = "the CQ has no completion channel";
        Err(VerbsError::InvalidArgument(why))
    }

    /// Changes the number of entries.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if the present entries would not fit, or if `cqe` is 0 or
    /// above the device's limit.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        self.context.enter(Verb::ResizeCq)?;
        let ContextInner { engine, hca, .. } = &*self.context;
        engine.check_size(hca, Limit::MaxCqe, cqe.into(), "cqe")?;
        if cqe == 0 || cqe > self.context.hca.config.like.max_cqe() {
            return Err(VerbsError::InvalidArgument("cqe"));
        }
        if (cqe as usize) < self.inner.capacity() {
            // On hardware, datagrams that still wait for their route would be complete by now.
            self.context.engine.wait_for_posts(&self.inner);
        }
        //= CQ-04
        if !self.inner.resize(cqe as usize) {
            let why = "the CQ contains more completions";
            return Err(VerbsError::InvalidArgument(why));
        }
        Ok(())
    }

    /// Holds a completion event until `count` completions have come, or `period_us` microseconds
    /// have passed since the first of them. With a count of 0 or 1, or a period of 0, events are
    /// not held.
    ///
    /// # Errors
    /// None, unless a fault rule demands one.
    //= CQ-10
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), VerbsError> {
        self.context.enter(Verb::ModifyCq)?;
        let now = self.context.engine.host.now();
        let period_ns = u64::from(period_us) * 1_000;
        self.inner.moderate(count.into(), period_ns, now);
        Ok(())
    }

    /// The number of entries.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.inner.capacity()).unwrap_or(u32::MAX)
    }

    /// The cookie given at creation.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.inner.cookie()
    }

    /// Acknowledges completion events of this CQ.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_events(&self, count: u32) {
        self.inner.acks().ack(u64::from(count));
    }

    /// Acknowledges asynchronous events of this CQ.
    pub fn ack_async_events(&self, count: u32) {
        self.inner.async_acks().ack(u64::from(count));
    }

    /// Destroys the CQ: drops unread events, and waits until the others are acknowledged.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.context.enter(Verb::DestroyCq)?;
        //= DST-02
        self.inner.users().check("completion queue")?;
        if self.inner.is_awaited() {
            let what = "completion queue, by WAIT requests";
            return Err(VerbsError::Busy(what.to_owned()));
        }
        self.inner.destroy();
        Ok(())
    }
}
