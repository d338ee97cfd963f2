//! The reasons of failing verbs in words, with remedies for common mistakes.

use rocade_emulator::{
    Gid, Likeness, ModifyError, Mtu, PostError, QpAttr, QpAttrMask, QpCap, QpState, QpType,
    VerbsError, limits, transition_rule,
};

use crate::{
    diagnostics::{self, Reason},
    ffi::Errno,
};

/// The arguments of a `modify_qp`, and the QP and the device that it was called on.
#[derive(Debug)]
pub(crate) struct Modify<'a> {
    pub(crate) qp_type: QpType,
    /// The current state of the QP, which a failed transition does not change.
    pub(crate) from: QpState,
    pub(crate) attr: &'a QpAttr,
    pub(crate) mask: QpAttrMask,
    pub(crate) active_mtu: Mtu,
    pub(crate) gids: Vec<Gid>,
}

impl Modify<'_> {
    /// Returns the reason of a failed transition. The text begins with the transition.
    pub(crate) fn refused(&self, error: &VerbsError) -> Reason {
        let reason = match error {
            VerbsError::Modify(error) => self.modify_error(error),
            error => self::error(error),
        };
        let from = state_name(self.from);
        let to = match self.target() {
            Some(to) if to == self.from => {
                return Reason::new(format!("in {from}: {}", reason.what), reason.advice);
            }
            Some(to) => state_name(to).to_owned(),
            None => format!("state {}", self.attr.qp_state),
        };
        Reason::new(format!("{from} -> {to}: {}", reason.what), reason.advice)
    }

    /// Returns the reason if the target state is the current one, or if the call names no state.
    fn same_state(&self, error: &ModifyError) -> Option<Reason> {
        if self.target() != Some(self.from) {
            return None;
        }
        let rule = transition_rule(self.qp_type, self.from, self.from);
        let name = state_name(self.from);
        let already = match self.mask.contains(QpAttrMask::STATE) {
            true => format!("the queue pair is already in {name}"),
            false => "attr_mask does not change the state".to_owned(),
        };
        let advice = "to connect a queue pair again, move it to RESET first";
        match (error, rule) {
            (ModifyError::NoTransition, _) => Some(Reason::new(already, advice)),
            (ModifyError::UnexpectedAttr, Some(rule)) => {
                let allowed = rule.required | rule.optional;
                let extra = names(self.mask.difference(QpAttrMask::STATE | allowed));
                let allowed = match allowed.is_empty() {
                    true => "nothing".to_owned(),
                    false => names(allowed),
                };
                Some(Reason::new(
                    format!("{already}, and {extra} cannot be changed there"),
                    format!("only {allowed} can be changed there. {advice}"),
                ))
            }
            _ => None,
        }
    }

    fn target(&self) -> Option<QpState> {
        if self.mask.contains(QpAttrMask::STATE) {
            QpState::from_code(self.attr.qp_state)
        } else {
            Some(self.from)
        }
    }

    fn modify_error(&self, error: &ModifyError) -> Reason {
        if let Some(reason) = self.same_state(error) {
            return reason;
        }
        let rule = self
            .target()
            .and_then(|to| transition_rule(self.qp_type, self.from, to));
        match (error, rule) {
            (ModifyError::NoTransition, _) => Reason::new(
                "there is no such transition",
                "the transitions are RESET -> INIT -> RTR -> RTS, and from any state to RESET or ERR",
            ),
            (ModifyError::MissingAttr, Some(rule)) => {
                let missing = names(rule.required.difference(self.mask));
                let needed = names(QpAttrMask::STATE | rule.required);
                Reason::new(
                    format!("attr_mask lacks {missing}"),
                    format!("this transition requires {needed}"),
                )
            }
            (ModifyError::UnexpectedAttr, Some(rule)) => {
                let allowed = QpAttrMask::STATE | rule.required | rule.optional;
                let extra = names(self.mask.difference(allowed));
                Reason::new(
                    format!("attr_mask has {extra}, which this transition does not allow"),
                    format!("it allows {}", names(allowed)),
                )
            }
            (ModifyError::WrongCurrentState, _) => Reason::new(
                format!(
                    "cur_qp_state is not the state of the queue pair, {}",
                    state_name(self.from)
                ),
                "",
            ),
            (ModifyError::NotDrained, _) => {
                Reason::new(error.to_string(), "wait for IBV_EVENT_SQ_DRAINED")
            }
            (ModifyError::BadValue(field), _) => self.bad_value(field),
            (ModifyError::MissingAttr | ModifyError::UnexpectedAttr, None) => {
                Reason::new(error.to_string(), "")
            }
        }
    }

    fn bad_value(&self, field: &str) -> Reason {
        let av = &self.attr.ah_attr;
        match field {
            "ah_attr.is_global" => Reason::new(
                "the address vector has no GID (ah_attr.is_global is 0)",
                "RoCE needs a GID: -g 0 (ibv_*_pingpong, on both sides) or -x 0 (perftest); in a \
                 program of your own ah_attr.is_global = 1 and ah_attr.grh",
            ),
            "path_mtu" => self.bad_mtu(),
            "ah_attr.grh.sgid_index" => Reason::new(
                format!(
                    "ah_attr.grh.sgid_index is {}, the GID table has {} entries",
                    av.sgid_index,
                    self.gids.len()
                ),
                "`rocade devices` lists them; index 0 is always there",
            ),
            "ah_attr.grh.dgid" => self.bad_dgid(),
            "ah_attr.port_num" | "port_num" | "alt_port_num" => Reason::new(
                format!("{field} is invalid"),
                "port numbers begin at 1, and a device has one port unless two are configured. \
                 port_num must equal ah_attr.port_num, and alt_port_num must equal \
                 alt_ah_attr.port_num",
            ),
            _ => match self.range_of(field) {
                Some((value, range)) => {
                    Reason::new(format!("{field} is {value}; allowed: {range}"), "")
                }
                None => Reason::new(format!("{field} is out of range"), ""),
            },
        }
    }

    fn bad_mtu(&self) -> Reason {
        let active = self.active_mtu.bytes();
        let asked = u8::try_from(self.attr.path_mtu)
            .ok()
            .and_then(Mtu::from_code);
        match asked {
            Some(mtu) => Reason::new(
                format!(
                    "path_mtu is {}, above the active MTU of the port, {active}",
                    mtu.bytes()
                ),
                format!(
                    "-m {active} (ibv_*_pingpong, perftest), or an interface with a larger MTU, \
                     because packets must fit into it"
                ),
            ),
            None => Reason::new(
                format!("path_mtu is {}, not one of IBV_MTU_*", self.attr.path_mtu),
                format!(
                    "the largest MTU of this port is IBV_MTU_{active} ({})",
                    self.active_mtu.code()
                ),
            ),
        }
    }

    fn bad_dgid(&self) -> Reason {
        let av = &self.attr.ah_attr;
        if av.dgid.is_zero() {
            return Reason::new(
                "the peer's GID (ah_attr.grh.dgid) is 0",
                "the peer must send its GID too: start it with -g 0 as well",
            );
        }
        let own = self.gids.get(usize::from(av.sgid_index));
        if !av.dgid.is_multicast()
            && let Some(own) = own
        {
            return Reason::new(
                format!(
                    "the peer's GID {} and the local one at index {}, {own}, are of different IP \
                     versions",
                    av.dgid, av.sgid_index
                ),
                "choose a GID index of the same version on both sides; `rocade devices` lists them",
            );
        }
        Reason::new(format!("{} cannot be the GID of a peer", av.dgid), "")
    }

    fn range_of(&self, field: &str) -> Option<(u32, &'static str)> {
        let attr = self.attr;
        Some(match field {
            "qp_state" => (attr.qp_state, "IBV_QPS_RESET (0) to IBV_QPS_ERR (6)"),
            "pkey_index" => (attr.pkey_index.into(), "0"),
            "timeout" => (attr.timeout.into(), "0 to 31 (4.096 us * 2^timeout)"),
            "retry_cnt" => (attr.retry_cnt.into(), "0 to 7"),
            "rnr_retry" => (attr.rnr_retry.into(), "0 to 7 (7: unlimited)"),
            "min_rnr_timer" => (attr.min_rnr_timer.into(), "0 to 31"),
            "max_rd_atomic" => (
                attr.max_rd_atomic.into(),
                "up to max_qp_init_rd_atom of `ibv_devinfo -v`",
            ),
            "max_dest_rd_atomic" => (
                attr.max_dest_rd_atomic.into(),
                "up to max_qp_rd_atom of `ibv_devinfo -v`",
            ),
            "ah_attr.sl" => (attr.ah_attr.sl.into(), "0 to 7"),
            _ => return None,
        })
    }
}

/// Returns the name of a state as in the InfiniBand specification.
pub(crate) const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

/// Returns the names of the bits of a mask as C programs write them.
fn names(mask: QpAttrMask) -> String {
    let names: Vec<String> = mask
        .iter_names()
        .map(|(name, _)| format!("IBV_QP_{name}"))
        .collect();
    names.join(" | ")
}

/// Returns the reason why a QP in this state refuses a work request.
pub(crate) fn post_error(state: QpState, is_send: bool, error: &VerbsError) -> Reason {
    match error {
        VerbsError::Post(PostError::InvalidState) if is_send => Reason::new(
            format!(
                "the queue pair is in {} and accepts no sends",
                state_name(state)
            ),
            "move it to RTS first (ibv_modify_qp)",
        ),
        VerbsError::Post(PostError::InvalidState) => Reason::new(
            format!(
                "the queue pair is in {} and accepts no receives",
                state_name(state)
            ),
            "move it to INIT first (ibv_modify_qp)",
        ),
        VerbsError::Post(PostError::SharedReceives) => {
            Reason::new(error.to_string(), "post to the SRQ: ibv_post_srq_recv")
        }
        error => self::error(error),
    }
}

/// Returns the reason why a QP cannot be created.
pub(crate) fn create_qp(
    cap: &QpCap,
    qp_type: QpType,
    like: Likeness,
    error: &VerbsError,
) -> Reason {
    let field = match error {
        VerbsError::NotSupported(_) if qp_type == QpType::RawPacket => return self::error(error),
        VerbsError::NotSupported(_) => return qp_type_missing(&format!("{qp_type:?}")),
        VerbsError::InvalidArgument(field) => field,
        error => return self::error(error),
    };
    let (asked, limit) = match *field {
        "cap.max_send_wr" => (cap.max_send_wr, limits::MAX_QP_WR),
        "cap.max_recv_wr" => (cap.max_recv_wr, limits::MAX_QP_WR),
        "cap.max_send_sge" => (cap.max_send_sge, like.max_sge()),
        "cap.max_recv_sge" => (cap.max_recv_sge, like.max_sge()),
        "cap.max_inline_data" => (cap.max_inline_data, limits::MAX_INLINE_DATA),
        _ => return self::error(error),
    };
    Reason::new(
        format!("{field} is {asked}, the limit is {limit}"),
        "`ibv_devinfo -v` shows the limits",
    )
}

/// Returns the reason for a QP type that Rocade does not have.
pub(crate) fn qp_type_missing(name: &str) -> Reason {
    Reason::new(
        format!(
            "Rocade does not support queue pairs of type {}, only RC, UC, UD, XRC and RAW_PACKET",
            name.to_uppercase()
        ),
        "use the RC variant of the program: ibv_rc_pingpong, perftest with -c RC",
    )
}

/// Returns the reason of an error of the emulator.
pub(crate) fn error(error: &VerbsError) -> Reason {
    let advice = match error {
        VerbsError::InvalidArgument("cqe") => "from 1 to max_cqe of `ibv_devinfo -v`",
        VerbsError::InvalidArgument("comp_vector") => "below num_comp_vectors of the context",
        VerbsError::InvalidArgument("port_num") => {
            "port numbers begin at 1, and a device has one port unless two are configured"
        }
        VerbsError::InvalidArgument(what) if what.contains("IP version") => {
            "`rocade devices` lists the GIDs; choose the index of one with the peer's or group's IP version"
        }
        VerbsError::InvalidArgument("remote write needs local write") => {
            "add IBV_ACCESS_LOCAL_WRITE"
        }
        VerbsError::Fault => {
            "the whole range must be mapped, and writable for IBV_ACCESS_LOCAL_WRITE"
        }
        VerbsError::NotPermitted(what) if what.contains("CAP_NET_RAW") => {
            "run the program as root, or in its own namespace: unshare --map-root-user --net"
        }
        VerbsError::Busy(_) => "destroy the objects that use it first",
        error => return Reason::new(error.to_string(), error.remedy()),
    };
    Reason::new(error.to_string(), advice)
}

/// Returns the reason for an errno without a noted reason.
pub(crate) fn errno(errno: Errno) -> Reason {
    match errno.0 {
        libc::EINVAL => Reason::new("an argument is NULL or out of range", ""),
        libc::EOPNOTSUPP => Reason::new("Rocade does not support this", ""),
        libc::ENODEV => Reason::new(
            "the parent process created the object, before fork",
            "open the device again in the child process",
        ),
        libc::EBUSY => Reason::new(
            "the object is still in use",
            "destroy the objects that use it first",
        ),
        libc::EIO => Reason::new(
            "an internal error. The previous message has the details",
            "",
        ),
        _ => Reason::new(diagnostics::name_of(errno), ""),
    }
}

#[cfg(test)]
mod tests {
    use rocade_emulator::AddressVector;

    use super::*;

    fn gid(address: &str) -> Gid {
        Gid::from_ip(address.parse().expect("an address"))
    }

    fn attr() -> QpAttr {
        QpAttr {
            qp_state: QpState::Rtr.code(),
            path_mtu: 5,
            ah_attr: AddressVector {
                is_global: true,
                dgid: gid("192.0.2.1"),
                ..AddressVector::default()
            },
            ..QpAttr::default()
        }
    }

    fn refused(attr: &QpAttr, mask: QpAttrMask, error: ModifyError) -> String {
        let modify = Modify {
            qp_type: QpType::Rc,
            from: QpState::Init,
            attr,
            mask,
            active_mtu: Mtu::from_code(3).expect("1024"),
            gids: vec![gid("127.0.0.1"), gid("::1")],
        };
        let reason = modify.refused(&VerbsError::Modify(error));
        format!("{}\n{}", reason.what, reason.advice)
    }

    fn assert_has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    #[test]
    fn a_missing_gid_comes_with_the_option_that_gives_one() {
        let bad = ModifyError::BadValue("ah_attr.is_global");
        let text = refused(&attr(), QpAttrMask::STATE | QpAttrMask::AV, bad);
        assert_has(&text, &["INIT -> RTR", "GID", "-g 0"]);
    }

    #[test]
    fn an_mtu_above_the_active_one_says_both() {
        let text = refused(
            &attr(),
            QpAttrMask::STATE,
            ModifyError::BadValue("path_mtu"),
        );
        assert_has(&text, &["4096", "active MTU", "1024", "-m 1024"]);
    }

    #[test]
    fn masks_are_named_bit_by_bit() {
        let mask = QpAttrMask::STATE | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN;
        let text = refused(&attr(), mask, ModifyError::MissingAttr);
        assert_has(
            &text,
            &["lacks IBV_QP_AV | IBV_QP_RQ_PSN", "IBV_QP_MIN_RNR_TIMER"],
        );
        assert!(
            !text
                .lines()
                .next()
                .is_some_and(|line| line.contains("PATH_MTU"))
        );
        let text = refused(
            &attr(),
            mask | QpAttrMask::QKEY,
            ModifyError::UnexpectedAttr,
        );
        assert_has(&text, &["has IBV_QP_QKEY,"]);
    }

    /// A program that connects a QP twice.
    #[test]
    fn a_state_that_is_reached_already_is_no_transition() {
        let say = |from, to: QpState, mask, error| {
            let modify = Modify {
                qp_type: QpType::Rc,
                from,
                attr: &QpAttr {
                    qp_state: to.code(),
                    ..attr()
                },
                mask,
                active_mtu: Mtu::from_code(3).expect("1024"),
                gids: Vec::new(),
            };
            let reason = modify.refused(&VerbsError::Modify(error));
            format!("{}\n{}", reason.what, reason.advice)
        };
        let (rts, rtr) = (QpState::Rts, QpState::Rtr);
        let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT | QpAttrMask::SQ_PSN;
        let text = say(rts, rts, mask, ModifyError::UnexpectedAttr);
        let extra = "IBV_QP_TIMEOUT | IBV_QP_SQ_PSN cannot be changed there";
        assert_has(&text, &["in RTS: the queue pair is already in RTS", extra]);
        assert_has(&text, &["only IBV_QP_", "RESET first"]);
        assert!(!text.contains("RTS -> RTS"), "{text}");
        let text = say(rtr, rtr, QpAttrMask::STATE, ModifyError::NoTransition);
        assert_has(&text, &["the queue pair is already in RTR", "RESET first"]);
        let mask = QpAttrMask::SQ_PSN;
        let text = say(rts, QpState::Reset, mask, ModifyError::UnexpectedAttr);
        assert_has(
            &text,
            &["attr_mask does not change the state", "IBV_QP_SQ_PSN"],
        );
    }

    #[test]
    fn gids_that_do_not_fit_are_told_apart() {
        let mut attr = attr();
        let bad = ModifyError::BadValue("ah_attr.grh.dgid");
        attr.ah_attr.sgid_index = 1;
        let text = refused(&attr, QpAttrMask::STATE, bad);
        assert_has(&text, &["::ffff:192.0.2.1", "::1", "different IP versions"]);
        attr.ah_attr.dgid = Gid::new([0; 16]);
        assert_has(&refused(&attr, QpAttrMask::STATE, bad), &["is 0", "-g 0"]);
        attr.ah_attr.sgid_index = 7;
        let bad = ModifyError::BadValue("ah_attr.grh.sgid_index");
        assert_has(&refused(&attr, QpAttrMask::STATE, bad), &["7", "2 entries"]);
    }

    #[test]
    fn limits_are_said_with_the_value() {
        let cap = QpCap {
            max_send_wr: 1 << 20,
            ..QpCap::default()
        };
        let reason = create_qp(
            &cap,
            QpType::Rc,
            Likeness::Rocade,
            &VerbsError::InvalidArgument("cap.max_send_wr"),
        );
        assert_has(&reason.what, &["1048576", &limits::MAX_QP_WR.to_string()]);
        let cap = QpCap {
            max_recv_sge: 31,
            ..QpCap::default()
        };
        let reason = create_qp(
            &cap,
            QpType::Rc,
            Likeness::Mlx5,
            &VerbsError::InvalidArgument("cap.max_recv_sge"),
        );
        assert_has(&reason.what, &["31", "limit is 30"]);
        let missing = VerbsError::NotSupported("QP type");
        let reason = create_qp(&cap, QpType::Ud, Likeness::Rocade, &missing);
        assert_has(&reason.what, &["UD", "only RC"]);
    }
}
