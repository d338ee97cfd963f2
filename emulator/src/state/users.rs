//! The users of an object, which cannot be destroyed before them.

use std::collections::BTreeMap;
use std::fmt;

use rocade_transport::Srqn;
use rocade_wire::Qpn;

use crate::error::VerbsError;
use crate::sync::modelled::Mutex;

/// Maximum number of users that an error names.
const MAX_NAMED: usize = 4;

/// An object that uses another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum User {
    Qp(Qpn),
    Srq(Srqn),
    /// Completion queues have no numbers.
    Cq,
    /// By its lkey.
    Mr(u32),
    /// By the rkey that it was allocated with.
    Mw(u32),
    /// Address handles have no numbers.
    Ah,
}

impl User {
    /// Describes `count` uses by this user. Only users without a number are counted.
    fn words(self, count: u32) -> String {
        match (self, count) {
            (Self::Qp(qpn), _) => format!("QP {qpn}"),
            (Self::Srq(srqn), _) => format!("SRQ {:#08x}", srqn.get()),
            (Self::Mr(key), _) => format!("the MR with lkey {key:#x}"),
            (Self::Mw(key), _) => format!("the memory window with rkey {key:#x}"),
            (Self::Cq, 1) => "a CQ".to_owned(),
            (Self::Cq, count) => format!("{count} CQs"),
            (Self::Ah, 1) => "an address handle".to_owned(),
            (Self::Ah, count) => format!("{count} address handles"),
        }
    }
}

/// The users of an object, with the number of their uses.
#[derive(Debug, Default)]
pub(crate) struct Users {
    known: Mutex<BTreeMap<User, u32>>,
}

impl Users {
    pub(crate) fn add(&self, user: User) {
        *self.known.lock().entry(user).or_default() += 1;
    }

    pub(crate) fn remove(&self, user: User) {
        let mut known = self.known.lock();
        if let Some(count) = known.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                known.remove(&user);
            }
        }
    }

    /// Returns how often the object is used.
    pub(crate) fn count(&self) -> u32 {
        self.known.lock().values().sum()
    }

    /// Returns true if nothing uses the object.
    #[cfg(all(test, loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// Returns an error that names the users if the object, which `what` names, is in use.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] that names the users.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), VerbsError> {
        let known = self.known.lock();
        if known.is_empty() {
            return Ok(());
        }
        Err(VerbsError::busy_by(what, &known))
    }
}

impl VerbsError {
    fn busy_by(what: &'static str, users: &BTreeMap<User, u32>) -> Self {
        let named = users.iter().take(MAX_NAMED);
        let named: Vec<String> = named.map(|(user, count)| user.words(*count)).collect();
        let more = users.len().saturating_sub(MAX_NAMED);
        Self::Busy(format!("{what}, by {}", List(&named, more)))
    }
}

/// A list of words for display, and the number of further ones that are not listed.
pub(crate) struct List<'a>(pub(crate) &'a [String], pub(crate) usize);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(words, more) = self;
        match (words, more) {
            (words, 1..) => write!(f, "{} and {more} more", words.join(", ")),
            ([all @ .., last], 0) if !all.is_empty() => {
                write!(f, "{} and {last}", all.join(", "))
            }
            (words, 0) => f.write_str(&words.join("")),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_as_long_as_they_are() {
        let users = Users::default();
        let said = || match users.check("thing") {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(), "");
        let qp = User::Qp(Qpn::new(0x0119b2));
        users.add(qp);
        users.add(qp);
        assert_eq!(said(), "still in use: thing, by QP 0x0119b2");
        users.add(User::Ah);
        users.add(User::Ah);
        assert_eq!(
            said(),
            "still in use: thing, by QP 0x0119b2 and 2 address handles"
        );
        users.remove(qp);
        for key in 1..=4 {
            users.add(User::Mr(key));
        }
        assert_eq!(
            said(),
            "still in use: thing, by QP 0x0119b2, the MR with lkey 0x1, the MR with lkey 0x2, \
             the MR with lkey 0x3 and 2 more"
        );
        users.remove(qp);
        for key in 1..=4 {
            users.remove(User::Mr(key));
        }
        users.remove(User::Ah);
        assert_eq!(said(), "still in use: thing, by an address handle");
        users.remove(User::Ah);
        assert_eq!(said(), "");
    }
}
