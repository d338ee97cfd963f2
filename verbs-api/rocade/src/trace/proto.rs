//! The wire format of protobuf, as far as timelines need it.

/// A message in the making.
#[derive(Debug, Default, Clone)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or(0);
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

impl Message {
    /// Adds a number.
    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        put_varint(&mut self.bytes, field << 3 | VARINT);
        put_varint(&mut self.bytes, value);
        self
    }

    /// Adds a number of the type `fixed64`.
    pub(super) fn fixed64(mut self, field: u64, value: u64) -> Self {
        put_varint(&mut self.bytes, field << 3 | FIXED64);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a text.
    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.raw(field, text.as_bytes())
    }

    /// Adds a message.
    pub(super) fn message(self, field: u64, message: &Self) -> Self {
        self.raw(field, &message.bytes)
    }

    fn raw(mut self, field: u64, bytes: &[u8]) -> Self {
        put_varint(&mut self.bytes, field << 3 | BYTES);
        put_varint(&mut self.bytes, bytes.len() as u64);
        self.bytes.extend(bytes);
        self
    }

    /// Returns the encoded message.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl<'b> Value<'b> {
    /// Returns the number, or 0.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }

    /// Returns the bytes, or none.
    pub(super) const fn bytes(self) -> &'b [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Returns the text, or an empty one.
    pub(super) fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

/// The fields of an encoded message. Ends at the first mistake.
#[derive(Debug, Clone)]
pub(super) struct Fields<'b> {
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    pub(super) const fn of(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns true if all bytes were read.
    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn split(&mut self, len: u64) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = (u64, Value<'b>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        // After a mistake, bytes stay.
        let mut ahead = self.clone();
        let key = ahead.varint()?;
        let value = match key & 7 {
            VARINT => Value::Number(ahead.varint()?),
            FIXED64 => {
                let bytes = ahead.split(8)?.first_chunk()?;
                Value::Number(u64::from_le_bytes(*bytes))
            }
            BYTES => {
                let len = ahead.varint()?;
                Value::Bytes(ahead.split(len)?)
            }
            FIXED32 => {
                let bytes = ahead.split(4)?.first_chunk()?;
                Value::Number(u64::from(u32::from_le_bytes(*bytes)))
            }
            _ => return None,
        };
        *self = ahead;
        Some((key >> 3, value))
    }
}
