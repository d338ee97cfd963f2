//! Bytes as they arrive at QP 1: parse, print, and write again.

use rocade_wire::mad::{CmMessage, IpCmHeader, Mad};

/// Runs one input.
pub fn run(input: &[u8]) {
    // Most inputs are short and are padded with zeros.
    let mut bytes = [0; Mad::LEN];
    let len = input.len().min(bytes.len());
    bytes[..len].copy_from_slice(&input[..len]);
    let _ = Mad::parse(input);
    let Ok(mad) = Mad::parse(&bytes) else {
        return;
    };
    assert!(!mad.to_string().contains('\n'));
    // A written message parses to an equal one, which is written to the same bytes.
    let written = mad.to_bytes();
    let again = Mad::parse(&written).expect("written bytes parse");
    assert_eq!(again, mad);
    assert_eq!(again.to_bytes(), written);
    if let CmMessage::Req(req) = &mad.message
        && let Ok(header) = IpCmHeader::parse(&req.private_data)
    {
        assert_eq!(IpCmHeader::parse(&header.to_bytes()), Ok(header));
    }
}
