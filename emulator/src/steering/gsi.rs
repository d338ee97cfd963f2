//! Offsets and codes of connection manager messages in the UDP payload, to find the receiver's
//! slot.

/// UD SEND Only.
pub(super) const OPCODE: u32 = 0x64;
/// BTH and DETH precede the MAD.
const MAD_AT: u32 = 20;
/// The management class.
pub(super) const CLASS_AT: u32 = MAD_AT + 1;
/// The management class of the connection manager.
pub(super) const CLASS_CM: u32 = 7;
/// Offset of the two-byte attribute ID, which is the type of the message.
pub(super) const ATTRIBUTE_AT: u32 = MAD_AT + 16;
/// Offset of the first communication ID: the sender's, but in a SIDR_REP the receiver's.
pub(super) const FIRST_ID_AT: u32 = MAD_AT + 24;
/// Offset of the second communication ID: the receiver's.
pub(super) const SECOND_ID_AT: u32 = MAD_AT + 28;

/// Attribute ID of the first message with a receiver's ID. REJ, REP, RTU and DREQ follow.
pub(super) const MRA: u32 = 0x11;
pub(super) const DREP: u32 = 0x16;
pub(super) const SIDR_REP: u32 = 0x18;
pub(super) const LAP: u32 = 0x19;
pub(super) const APR: u32 = 0x1a;
