use super::*;
use crate::netlink::abi::{NLMSG_DONE, NLMSG_ERROR, attr as numbers};
use crate::netlink::message::tests::request;

struct Two;

impl Source for Two {
    fn devices(&self) -> Vec<Device> {
        let port = |number| Port {
            number,
            state: 4,
            phys_state: 5,
            interface: Some((3, "eth0".to_owned())),
            ..Port::default()
        };
        let device = |index, ports| Device {
            index,
            name: format!("dev{index}"),
            fw_ver: "1.2".to_owned(),
            node_guid: 0x0102_0304_0506_0708,
            sys_image_guid: 9,
            node_type: 1,
            ports,
        };
        vec![device(0, vec![port(1)]), device(1, vec![port(1), port(2)])]
    }

    fn resources(&self) -> Vec<Resource> {
        let qps = (0..200).map(|number| {
            format!("qp port=1 lqpn={number} type=2 state=3 sq_psn=9 pdn=1 rqpn=8 rq_psn=7 mig=0 guid=0102030405060708")
        });
        let others = [
            "mr mrn=5 iova=4096 mrlen=10 pdn=1 guid=0102030405060708",
            "mr mrn=6 iova=4096 mrlen=10 pdn=1 guid=77",
            "unknown what=this guid=0102030405060708",
            "cm_id port=1 cm_idn=2 ps=262 state=8 src=127.0.0.1:18515 guid=0102030405060708",
            "qp lqpn=x guid=",
        ];
        let others = others.map(str::to_owned);
        qps.chain(others)
            .map(|line| Resource::new(42, &line))
            .collect()
    }

    fn counters(&self, _: &Device, _: &Port) -> Vec<(String, u64)> {
        vec![("sent_pkts".to_owned(), 77)]
    }
}

const CALLER: Caller = Caller {
    port_id: 99,
    takes_words: true,
};
const DUMP: u16 = NLM_F_REQUEST | NLM_F_ACK | NLM_F_DUMP;
const DO: u16 = NLM_F_REQUEST | NLM_F_ACK;

/// Returns the messages of a reply, parsed as by a reader.
fn ask(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<(u16, Vec<u8>)> {
    let bytes = request(kind(command), flags, attributes);
    let datagrams = answer(&bytes, CALLER, &Two);
    assert!(datagrams.iter().all(|one| one.len() <= DATAGRAM_LEN));
    let all = datagrams.concat();
    requests(&all)
        .map(|message| {
            assert_eq!(message.seq, 7);
            let name = message.attribute(numbers::DEV_NAME).unwrap_or_default();
            (message.kind, name.to_vec())
        })
        .collect()
}

#[test]
fn a_dump_has_all_devices_and_an_end() {
    let all = ask(cmd::GET, DUMP, &[]);
    let of_device = kind(cmd::GET);
    assert_eq!(
        all,
        [
            (of_device, b"dev0\0".to_vec()),
            (of_device, b"dev1\0".to_vec()),
            (NLMSG_DONE, Vec::new())
        ]
    );
}

#[test]
fn one_device_or_port_is_answered_and_acknowledged() {
    let second = 1_u32.to_ne_bytes();
    let one = ask(cmd::GET, DO, &[(numbers::DEV_INDEX, &second)]);
    assert_eq!(one[0], (kind(cmd::GET), b"dev1\0".to_vec()));
    assert_eq!(one[1].0, NLMSG_ERROR);
    let port = 2_u32.to_ne_bytes();
    let bytes = request(
        kind(cmd::PORT_GET),
        DO,
        &[(numbers::DEV_INDEX, &second), (numbers::PORT_INDEX, &port)],
    );
    let all = answer(&bytes, CALLER, &Two).concat();
    let found = requests(&all).next().expect("an answer");
    assert_eq!(found.number(numbers::PORT_INDEX), Some(2));
    assert_eq!(found.attribute(numbers::PORT_STATE), Some(&[4][..]));
    assert_eq!(found.attribute(numbers::NDEV_NAME), Some(&b"eth0\0"[..]));
}

/// Returns the attributes in a nested attribute.
fn nested(bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut left = bytes;
    let mut found = Vec::new();
    while let [a, b, c, d, ..] = left {
        let len = usize::from(u16::from_ne_bytes([*a, *b]));
        found.push((u16::from_ne_bytes([*c, *d]), &left[4..len]));
        left = left.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

#[test]
fn a_long_table_comes_in_pieces() {
    let index = 0_u32.to_ne_bytes();
    let bytes = request(kind(cmd::RES_QP_GET), DUMP, &[(numbers::DEV_INDEX, &index)]);
    let datagrams = answer(&bytes, CALLER, &Two);
    assert!(datagrams.len() > 3);
    assert!(datagrams.iter().all(|one| one.len() <= DATAGRAM_LEN));
    let all = datagrams.concat();
    let mut numbers_found = Vec::new();
    for message in requests(&all).filter(|message| message.kind != NLMSG_DONE) {
        let table = message.attribute(numbers::RES_QP).expect("a table");
        for (entry, content) in nested(table) {
            assert_eq!(entry, numbers::RES_QP + 1);
            let fields = nested(content);
            let pid = fields.iter().find(|field| field.0 == numbers::RES_PID);
            assert_eq!(pid.map(|field| field.1), Some(&42_u32.to_ne_bytes()[..]));
            let number = fields.iter().find(|field| field.0 == numbers::RES_LQPN);
            let number = number.expect("a number").1.try_into().expect("four bytes");
            numbers_found.push(u32::from_ne_bytes(number));
        }
    }
    assert_eq!(numbers_found, (0..200).collect::<Vec<_>>());
    assert_eq!(requests(&all).last().expect("an end").kind, NLMSG_DONE);
}

/// Returns the number of objects that a dump of one kind lists.
fn listed(command: u16, (table, entry): (u16, u16), port: Option<u32>) -> usize {
    let (index, port) = (1_u32.to_ne_bytes(), port.map(u32::to_ne_bytes));
    let mut attributes = vec![(numbers::DEV_INDEX, &index[..])];
    attributes.extend(port.iter().map(|port| (numbers::PORT_INDEX, &port[..])));
    let bytes = request(kind(command), DUMP, &attributes);
    let all = answer(&bytes, CALLER, &Two).concat();
    let tables = requests(&all).filter_map(|message| message.attribute(table));
    let entries = tables.flat_map(nested).filter(|(kind, _)| *kind == entry);
    entries.count()
}

/// A dump may be about one port. Objects that belong to no port are listed for each.
#[test]
fn a_dump_of_a_port_has_the_objects_of_that_port() {
    let qps = (numbers::RES_QP, numbers::RES_QP + 1);
    for (port, count) in [(None, 200), (Some(0), 200), (Some(1), 200), (Some(2), 0)] {
        assert_eq!(listed(cmd::RES_QP_GET, qps, port), count, "{port:?}");
    }
    let regions = (numbers::RES_MR, numbers::RES_MR + 1);
    for port in [None, Some(1), Some(2)] {
        assert_eq!(listed(cmd::RES_MR_GET, regions, port), 1, "{port:?}");
    }
}

#[test]
fn one_object_is_found_by_its_number() {
    let (index, number) = (0_u32.to_ne_bytes(), 5_u32.to_ne_bytes());
    let attributes = [
        (numbers::DEV_INDEX, &index[..]),
        (numbers::RES_MRN, &number[..]),
    ];
    let bytes = request(kind(cmd::RES_MR_GET), DO, &attributes);
    let all = answer(&bytes, CALLER, &Two).concat();
    let found = requests(&all).next().expect("an answer");
    assert_eq!(found.number(numbers::RES_PDN), Some(1));
    // An object of another device.
    let other = 6_u32.to_ne_bytes();
    let attributes = [
        (numbers::DEV_INDEX, &index[..]),
        (numbers::RES_MRN, &other[..]),
    ];
    assert_eq!(
        refused(cmd::RES_MR_GET, &attributes, CALLER).0,
        libc::ENOENT
    );
}

#[test]
fn objects_are_counted_by_kind() {
    let index = 0_u32.to_ne_bytes();
    let bytes = request(kind(cmd::RES_GET), DO, &[(numbers::DEV_INDEX, &index)]);
    let all = answer(&bytes, CALLER, &Two).concat();
    let found = requests(&all).next().expect("an answer");
    let table = found.attribute(numbers::RES_SUMMARY).expect("a table");
    let counts: Vec<u64> = nested(table)
        .into_iter()
        .map(|(_, entry)| {
            let fields = nested(entry);
            let value = fields[1].1.try_into().expect("eight bytes");
            u64::from_ne_bytes(value)
        })
        .collect();
    assert_eq!(counts, [0, 0, 200, 1, 1, 0, 0]);
}

/// Returns the errno of a failed request, and whether it has a text.
fn refused(command: u16, attributes: &[(u16, &[u8])], caller: Caller) -> (i32, bool) {
    let bytes = request(kind(command), DO, attributes);
    let all = answer(&bytes, caller, &Two).concat();
    let found: Vec<_> = requests(&all).collect();
    assert_eq!((found.len(), found[0].kind), (1, NLMSG_ERROR));
    let errno = i32::from_ne_bytes(all[16..20].try_into().expect("four bytes"));
    let words = all.windows(6).any(|part| part == b"Rocade");
    (-errno, words)
}

#[test]
fn links_cannot_be_added_or_deleted() {
    let index = 0_u32.to_ne_bytes();
    for (command, attribute) in [
        (cmd::NEWLINK, (numbers::DEV_NAME, &b"rxe0\0"[..])),
        (cmd::DELLINK, (numbers::DEV_INDEX, &index[..])),
    ] {
        assert_eq!(
            refused(command, &[attribute], CALLER),
            (libc::EOPNOTSUPP, true)
        );
        let older = Caller {
            takes_words: false,
            ..CALLER
        };
        assert_eq!(
            refused(command, &[attribute], older),
            (libc::EOPNOTSUPP, false)
        );
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let absent = 2_u32.to_ne_bytes();
    for attributes in [
        &[][..],
        &[(numbers::DEV_INDEX, &absent[..])],
        &[(numbers::DEV_INDEX, &absent[..3])],
    ] {
        for command in [cmd::GET, cmd::PORT_GET, cmd::STAT_GET] {
            assert_eq!(refused(command, attributes, CALLER).0, libc::EINVAL);
        }
    }
    assert_eq!(refused(999, &[], CALLER).0, libc::EOPNOTSUPP);
}

/// Any request survives a change of every single byte to several values, and every truncation.
#[test]
fn no_request_is_too_hostile() {
    let index = 1_u32.to_ne_bytes();
    for command in 0..40 {
        for flags in [DUMP, DO] {
            let attributes = [
                (numbers::DEV_INDEX, &index[..]),
                (numbers::PORT_INDEX, &index[..]),
            ];
            let good = request(kind(command), flags, &attributes);
            for len in 0..=good.len() {
                let _ = answer(&good[..len], CALLER, &Two);
            }
            for place in 0..good.len() {
                for value in [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff] {
                    let mut bytes = good.clone();
                    bytes[place] = value;
                    for datagram in answer(&bytes, CALLER, &Two) {
                        let whole: usize = requests(&datagram).count();
                        assert!(whole > 0 && datagram.len() <= DATAGRAM_LEN);
                    }
                }
            }
        }
    }
}
