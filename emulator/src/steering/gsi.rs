//! Where messages of the connection manager say whose they are: offsets in the UDP payload, and codes.

/// UD SEND Only.
pub(super) const OPCODE: u32 = 0x64;
/// BTH and DETH precede the MAD.
const MAD_AT: u32 = 20;
/// The management class.
pub(super) const CLASS_AT: u32 = MAD_AT + 1;
/// That of the connection manager.
pub(super) const CLASS_CM: u32 = 7;
/// The attribute, of two bytes: which message it is.
pub(super) const ATTRIBUTE_AT: u32 = MAD_AT + 16;
/// The first communication ID: the sender's, but in a SIDR_REP the receiver's.
pub(super) const FIRST_ID_AT: u32 = MAD_AT + 24;
/// The second one: the receiver's.
pub(super) const SECOND_ID_AT: u32 = MAD_AT + 28;

/// The first message with a receiver's ID; REJ, REP, RTU and DREQ follow.
pub(super) const MRA: u32 = 0x11;
pub(super) const DREP: u32 = 0x16;
pub(super) const SIDR_REP: u32 = 0x18;
pub(super) const LAP: u32 = 0x19;
pub(super) const APR: u32 = 0x1a;
