//! One-line printers of headers, packets and datagrams, for logs and failing tests.

use core::fmt;

use crate::ip::Datagram;
use crate::mad::Mad;
use crate::{Bth, DcRespEth, Headers, NakCode, Packet, Qpn, Selectivity, Syndrome};

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp={} psn={}", self.opcode, self.dest_qp, self.psn)?;
        let flags = [
            (self.ack_req, " A"),
            (self.solicited, " SE"),
            (self.migreq, " M"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
        ];
        for (set, name) in flags {
            if set {
                f.write_str(name)?;
            }
        }
        if self.pkey != crate::Pkey::DEFAULT {
            write!(f, " pkey={}", self.pkey)?;
        }
        if self.tver != 0 || self.resv6 != 0 || self.resv7 != 0 {
            write!(
                f,
                " tver={} resv={:#x},{:#x}",
                self.tver, self.resv6, self.resv7
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PsnSequence => f.write_str("PSN_SEQUENCE"),
            Self::InvalidRequest => f.write_str("INVALID_REQUEST"),
            Self::RemoteAccess => f.write_str("REMOTE_ACCESS"),
            Self::RemoteOperational => f.write_str("REMOTE_OPERATIONAL"),
            Self::InvalidRdRequest => f.write_str("INVALID_RD_REQUEST"),
            Self::Reserved(code) => write!(f, "RESERVED({code})"),
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(credits) => match credits.credits() {
                Some(credits) => write!(f, "ACK credits={credits}"),
                None => f.write_str("ACK"),
            },
            Self::RnrNak(timer) => write!(f, "RNR_NAK timer={}us", timer.as_ns() / 1_000),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(code) => write!(f, "SYNDROME {code:#04x}"),
        }
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bth.fmt(f)?;
        if let Some(rdeth) = self.rdeth {
            write!(f, " ee={:#08x}", rdeth.ee_context)?;
        }
        if let Some(xrceth) = self.xrceth {
            write!(f, " srq={:#08x}", xrceth.srqn)?;
        }
        if let Some(deth) = self.deth {
            write!(f, " qkey={} src_qp={}", deth.qkey, deth.src_qp)?;
        }
        if let Some(dc) = self.dceth {
            write!(f, " dci={} session={:#x}", dc.dci, dc.session)?;
            if dc.start {
                write!(f, " START mtu={}", dc.pmtu)?;
            }
            if dc.stream_channel != 0 {
                write!(f, " stream_channel={}", dc.stream_channel)?;
            }
        }
        if let Some(dc) = self.dcreth {
            write!(f, " session={:#x}", dc.session)?;
        }
        if let Some(feth) = self.feth {
            match feth.selectivity() {
                Selectivity::Range => f.write_str(" sel=range")?,
                Selectivity::MemoryRegion => f.write_str(" sel=mr")?,
                Selectivity::Reserved(value) => write!(f, " sel={value}")?,
            }
            write!(f, " plt={:#x}", feth.placement().bits())?;
        }
        if let Some(reth) = self.reth {
            write!(
                f,
                " va={:#x} rkey={} dma_len={}",
                reth.va, reth.rkey, reth.dma_len
            )?;
        }
        if let Some(atomic) = self.atomic {
            write!(
                f,
                " va={:#x} rkey={} swap_add={:#x} compare={:#x}",
                atomic.va, atomic.rkey, atomic.swap_add, atomic.compare
            )?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm={:#010x}", u32::from_be_bytes(imm.0))?;
        }
        if let Some(ieth) = self.ieth {
            write!(f, " inv={}", ieth.0)?;
        }
        if let Some(aeth) = self.aeth {
            let of_dc = self.dcreth.and(match aeth.syndrome {
                Syndrome::Nak(NakCode::Reserved(code)) => Some(code),
                Syndrome::Ack(_)
                | Syndrome::RnrNak(_)
                | Syndrome::Nak(_)
                | Syndrome::Reserved(_) => None,
            });
            //= DCW-11
            match of_dc {
                Some(DcRespEth::NAK_NO_SESSION) => f.write_str(" NAK NO_SESSION")?,
                Some(DcRespEth::NAK_NO_RESOURCES) => f.write_str(" NAK NO_RESOURCES")?,
                _ => write!(f, " {}", aeth.syndrome)?,
            }
            write!(f, " msn={}", aeth.msn)?;
        }
        if let Some(atomic_ack) = self.atomic_ack {
            write!(f, " original={:#x}", atomic_ack.original)?;
        }
        if let Some(masked) = self.masked {
            let (va, rkey, log_size) = (masked.va, masked.rkey, masked.log_size);
            write!(f, " va={va:#x} rkey={rkey} size=2^{log_size}")?;
        }
        Ok(())
    }
}

/// Prints a packet, e.g. `RC SEND_ONLY_IMM qp=0x000011 psn=0x000123 A imm=0x00000001 len=64`. The
/// message in a datagram to QP 1 follows.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headers().fmt(f)?;
        write!(f, " len={}", self.payload().len())?;
        if !self.pad().is_empty() {
            write!(f, " pad={}", self.pad().len())?;
        }
        if self.bth().dest_qp == Qpn::GSI
            && let Ok(mad) = Mad::parse(self.payload())
        {
            write!(f, " {mad}")?;
        }
        Ok(())
    }
}

/// Prints the addresses and, if the payload is a packet, the packet.
impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#06x} > {}", self.src, self.src_port, self.dst)?;
        if !self.is_roce() {
            return write!(f, ":{} udp_len={}", self.dst_port, self.udp_payload.len());
        }
        if self.src.is_ipv4() {
            write!(f, " id={:#06x}", self.ip_id)?;
        }
        if self.tos != 0 {
            write!(f, " tos={:#04x}", self.tos)?;
        }
        match Packet::parse(self.udp_payload) {
            Ok(packet) => write!(f, " {packet}"),
            Err(error) => write!(f, " ({error})"),
        }
    }
}

/// A one-line printer of arbitrary bytes that begin with an IP header: addresses, packet, and
/// whether the ICRC is correct.
#[derive(Clone, Copy, Debug)]
pub struct PrettyDatagram<'a>(pub &'a [u8]);

impl fmt::Display for PrettyDatagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let datagram = match Datagram::parse(self.0) {
            Ok(datagram) => datagram,
            Err(error) => return write!(f, "({error}) {} bytes", self.0.len()),
        };
        datagram.fmt(f)?;
        let wire_icrc = datagram
            .udp_payload
            .last_chunk()
            .map(|icrc| u32::from_le_bytes(*icrc));
        if datagram.is_roce() && wire_icrc.is_some() && crate::icrc::datagram(self.0) != wire_icrc {
            f.write_str(" BAD_ICRC")?;
        }
        Ok(())
    }
}
