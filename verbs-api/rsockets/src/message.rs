//! Immediate data.

/// The position of the message kind.
const KIND_SHIFT: u32 = 29;
/// The bits of the message value.
const VALUE: u32 = (1 << KIND_SHIFT) - 1;

const DATA: u32 = 0;
const SGL: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

/// The messages without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMessage {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The peer answers with a transport acknowledgement, which shows that it is alive.
    KeepAlive,
    /// The sender sends no more data.
    Shutdown,
}

/// The meaning of 32 bits of immediate data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// This number of bytes has been written behind the previous ones. At most 2²⁹ - 1.
    Data(u32),
    /// The receiver may send messages up to this number, modulo 2¹⁶. An entry of the target list
    /// may have changed.
    Credits(u16),
    /// This entry of the iomap list has changed.
    Iomap(u16),
    /// A control message.
    Control(ControlMessage),
    /// An unknown message, which is ignored.
    Unknown(u32),
}

impl Message {
    /// Decodes immediate data in host byte order.
    #[must_use]
    pub const fn parse(imm: u32) -> Self {
        let value = imm & VALUE;
        #[expect(clippy::cast_possible_truncation, reason = "numbers modulo 2^16")]
        let low = value as u16;
        match (imm >> KIND_SHIFT, value) {
            (DATA, bytes) => Self::Data(bytes),
            (SGL, _) => Self::Credits(low),
            (IOMAP, _) => Self::Iomap(low),
            (CONTROL, 0) => Self::Control(ControlMessage::Disconnect),
            (CONTROL, 1) => Self::Control(ControlMessage::KeepAlive),
            (CONTROL, 2) => Self::Control(ControlMessage::Shutdown),
            _ => Self::Unknown(imm),
        }
    }

    /// Encodes the message in host byte order.
    #[must_use]
    pub const fn imm(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credits(number) => (SGL, number as u32),
            Self::Iomap(index) => (IOMAP, index as u32),
            Self::Control(ControlMessage::Disconnect) => (CONTROL, 0),
            Self::Control(ControlMessage::KeepAlive) => (CONTROL, 1),
            Self::Control(ControlMessage::Shutdown) => (CONTROL, 2),
            Self::Unknown(imm) => return imm,
        };
        (kind << KIND_SHIFT) | (value & VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bits_of_the_protocol() {
        for (message, imm) in [
            (Message::Data(0x123), 0x0000_0123),
            (Message::Data(VALUE), 0x1fff_ffff),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Iomap(7), 0xc000_0007),
            (Message::Control(ControlMessage::Disconnect), 0xe000_0000),
            (Message::Control(ControlMessage::KeepAlive), 0xe000_0001),
            (Message::Control(ControlMessage::Shutdown), 0xe000_0002),
            (Message::Unknown(0xe000_0003), 0xe000_0003),
            (Message::Unknown(0x4000_0000), 0x4000_0000),
            (Message::Unknown(0xa000_0001), 0xa000_0001),
        ] {
            assert_eq!(message.imm(), imm, "{message:?}");
            assert_eq!(Message::parse(imm), message, "{imm:#x}");
        }
    }

    /// Some senders do not truncate the number of credits to 16 bits.
    #[test]
    fn credits_are_numbers_of_16_bits() {
        assert_eq!(Message::parse(0x8001_0005), Message::Credits(5));
    }
}
