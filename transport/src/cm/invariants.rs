//! Conditions that hold between any two calls of the connection manager, asserted in debug builds.

use super::Cm;

impl Cm {
    /// Asserts the conditions in debug builds. Its time does not depend on the number of
    /// connections.
    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) {
        self.check_timers();
        self.check_indices();
        for admission in self.admissions.values().take(2) {
            admission.check_invariants();
        }
        if let Some(service) = self.backlogged.first() {
            assert!(
                self.admissions.contains_key(service),
                "requests wait for {service:?}, which has no listener"
            );
        }
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "the same call as in debug builds")]
    pub(super) const fn check_invariants(&self) {}

    /// Each timer is the deadline of a connection.
    #[cfg(debug_assertions)]
    fn check_timers(&self) {
        assert!(
            self.timers.len() <= self.conns.len(),
            "a timer of no connection"
        );
        if let Some((at, id)) = self.timers.first() {
            let deadline = self.conns.get(id).and_then(|conn| conn.deadline);
            assert_eq!(deadline, Some(*at), "{id:?}");
        }
    }

    /// Each index names connections that have what it is sorted by.
    #[cfg(debug_assertions)]
    fn check_indices(&self) {
        let known = self.conns.len();
        assert!(self.by_remote_id.len() <= known, "an index is too long");
        assert!(self.by_remote_qp.len() <= known, "an index is too long");
        assert!(self.by_request.len() <= known, "an index is too long");
        let named = [
            self.by_remote_id.first_key_value().map(|(_, id)| id),
            self.by_remote_qp.first_key_value().map(|(_, id)| id),
            self.by_request.first_key_value().map(|(_, id)| id),
        ];
        for id in named.into_iter().flatten() {
            assert!(self.conns.contains_key(id), "{id:?} is gone");
        }
        if let Some((end, id)) = self.by_remote_qp.first_key_value() {
            let conn = &self.conns[id];
            assert_eq!(&conn.remote_qp(), end, "{id:?}");
        }
    }
}
