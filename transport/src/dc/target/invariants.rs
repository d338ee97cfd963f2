//! Conditions that hold between any two calls of a DC target, asserted in debug builds.

use super::{MAX_SESSIONS, MAX_STATELESS_REPLIES, Target};

impl Target {
    /// Asserts all conditions. Looks at one session of each list, because there may be thousands.
    pub(crate) fn check_invariants(&self) {
        self.check_counts();
        self.check_lists();
        assert!(
            self.replies.len() <= MAX_STATELESS_REPLIES,
            "{} answers wait",
            self.replies.len()
        );
    }

    /// Each index has a session, or is free.
    fn check_counts(&self) {
        let (known, free) = (self.by_channel.len(), self.free.len());
        assert!(known <= MAX_SESSIONS, "{known} sessions");
        assert_eq!(known + free, self.sessions.len(), "an index is lost");
        assert_eq!(self.by_age.len(), known, "each session has an age");
        assert!(
            self.ready.len() <= self.sessions.len(),
            "a session is listed twice"
        );
        if let Some(index) = self.free.last() {
            assert!(self.sessions[*index].is_none(), "{index} is free");
        }
    }

    /// The lists name the sessions that say so.
    fn check_lists(&self) {
        if let Some((channel, index)) = self.by_channel.first_key_value() {
            let session = self.sessions[*index].as_ref().expect("it is known");
            assert_eq!(session.channel_id, *channel, "{index}");
        }
        if let Some((_, index)) = self.by_age.first() {
            let session = self.sessions[*index].as_ref().expect("it has an age");
            assert_eq!(
                self.by_channel.get(&session.channel_id),
                Some(index),
                "it has an age, and is not known"
            );
        }
        if let Some(index) = self.ready.front()
            && let Some(session) = &self.sessions[*index]
        {
            assert!(session.is_listed, "{index} is ready");
        }
        if let Some(index) = self
            .unreported
            .front()
            .filter(|index| **index != usize::MAX)
        {
            let session = self.sessions[*index].as_ref().expect("it has a message");
            assert!(session.responder.unreported() > 0, "{index} has no message");
        }
        if let Some(Some(session)) = self.sessions.get(self.last) {
            session.responder.check_invariants();
        }
    }
}
