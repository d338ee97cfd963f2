use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn interface(name: &str, index: u32, mtu_bytes: u32, addrs: &[&str]) -> Interface {
    Interface {
        name: name.to_owned(),
        index,
        mtu_bytes,
        loopback: name == "lo",
        addrs: addrs.iter().map(|addr| ip(addr)).collect(),
    }
}

/// Returns the interfaces of a laptop: loopback, a cable, and a bridge without IPv4 address.
fn laptop() -> HostNetwork {
    HostNetwork::new(vec![
        interface("lo", 1, 65536, &["127.0.0.1", "::1"]),
        interface("br0", 2, 1500, &["fe80::2"]),
        interface(
            "eth0",
            3,
            9000,
            &["fe80::3", "2001:db8::3", "192.0.2.3", "192.0.2.4"],
        ),
    ])
}

fn identity() -> HostIdentity {
    HostIdentity::fixed("test")
}

fn resolve(specs: &[&str]) -> Result<EngineConfig, ConfigError> {
    let specs: Vec<String> = specs.iter().map(|&spec| spec.to_owned()).collect();
    Settings::from_flags(&specs, None)?.resolve(&laptop(), &identity())
}

/// Returns the error text of a specification that must be rejected.
fn refused(specs: &[&str]) -> String {
    resolve(specs).expect_err("must be refused").to_string()
}

fn env(vars: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + use<> {
    let vars: BTreeMap<String, OsString> = vars
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.into()))
        .collect();
    move |name| vars.get(name).cloned()
}

#[test]
fn default_devices_have_loopback_last_and_ipv4_first() {
    let config = Settings::default().resolve(&laptop(), &identity()).unwrap();
    let seen: Vec<_> = config
        .devices
        .iter()
        .map(|d| {
            (
                d.name.as_str(),
                d.port.ifname.as_deref().unwrap(),
                d.port.ifindex,
                d.port.netdev_mtu,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("rocade0", "eth0", 3, 9000),
            ("rocade1", "br0", 2, 1500),
            ("rocade2", "lo", 1, 65536)
        ]
    );
    let eth0: Vec<IpAddr> = ["192.0.2.3", "192.0.2.4", "2001:db8::3", "fe80::3"]
        .map(ip)
        .to_vec();
    assert_eq!(config.devices[0].port.addrs, eth0);
    assert_eq!(config.devices[2].port.addrs, [ip("127.0.0.1"), ip("::1")]);
    assert!(matches!(config.broker, BrokerMode::Auto(_)));
}

#[test]
fn an_interface_or_addresses_make_a_device() {
    let config = resolve(&["a=lo", "b=fe80::3%eth0,192.0.2.4", "c=127.0.0.2"]).unwrap();
    assert_eq!(config.devices[0].port.addrs, [ip("127.0.0.1"), ip("::1")]);
    assert_eq!(
        config.devices[1].port.addrs,
        [ip("fe80::3"), ip("192.0.2.4")]
    );
    assert_eq!(
        (
            config.devices[1].port.ifindex,
            config.devices[1].port.netdev_mtu
        ),
        (3, 9000)
    );
    // Configured nowhere, but the loopback interface accepts all of 127.0.0.0/8.
    assert_eq!(config.devices[2].port.addrs, [ip("127.0.0.2")]);
    assert_eq!(config.devices[2].port.ifname.as_deref(), Some("lo"));
}

#[test]
fn the_order_of_a_specification_is_the_order_of_the_gids() {
    let config = resolve(&["a=::1,lo", "b=::ffff:192.0.2.4,192.0.2.3"]).unwrap();
    assert_eq!(config.devices[0].port.addrs, [ip("::1"), ip("127.0.0.1")]);
    assert_eq!(
        config.devices[1].port.addrs,
        [ip("192.0.2.4"), ip("192.0.2.3")]
    );
}

#[test]
fn a_device_over_two_interfaces_has_the_smaller_mtu() {
    let config = resolve(&["a=lo,192.0.2.3"]).unwrap();
    assert_eq!(config.devices[0].port.netdev_mtu, 9000);
    assert!(refused(&["a=lo,eth0"]).contains("link-local"));
}

#[test]
fn a_device_may_have_two_ports() {
    let config = resolve(&["a=192.0.2.3,192.0.2.4+lo", "b=127.0.0.2"]).unwrap();
    let device = &config.devices[0];
    let second = device.second_port.as_ref().unwrap();
    assert_eq!(device.port.addrs, [ip("192.0.2.3"), ip("192.0.2.4")]);
    assert_eq!(second.addrs, [ip("127.0.0.1"), ip("::1")]);
    assert_eq!((device.port.netdev_mtu, second.netdev_mtu), (9000, 65536));
    assert_eq!((device.port.ifindex, second.ifindex), (3, 1));
    assert_eq!(
        (&device.port.follows[..], &second.follows[..]),
        (&[][..], &[1][..])
    );
    assert_eq!(config.devices[1].second_port, None);
    for (specs, reason) in [
        (&["a=lo+127.0.0.1"][..], "address in common"),
        (
            &["a=127.0.0.2+127.0.0.3", "b=127.0.0.3"],
            "address in common",
        ),
        (&["a=127.0.0.2+127.0.0.3+127.0.0.4"], "two ports"),
        (&["a=127.0.0.2+"], "missing"),
        (&["a=+127.0.0.2"], "missing"),
        (&["a=127.0.0.2+nosuch0"], "no interface nosuch0"),
    ] {
        assert!(
            refused(specs).contains(reason),
            "{specs:?}: {}",
            refused(specs)
        );
    }
    for text in ["a=127.0.0.2,lo+eth0,192.0.2.9", "a=lo"] {
        let spec = DeviceSpec::parse(text, &Origin::Program).unwrap();
        assert_eq!(spec.to_string(), text);
    }
}

#[test]
fn a_wrong_specification_names_key_value_and_what_is_allowed() {
    for (spec, reason) in [
        ("eth0", "did you mean rocade0=eth0?"),
        ("=eth0", "the device name is missing"),
        ("a b=eth0", "letters, digits"),
        ("-a=eth0", "letters, digits"),
        ("a=", "an interface or address is missing"),
        ("a=lo,,::1", "an interface or address is missing"),
        ("a=0.0.0.0", "means any address"),
        ("a=::", "means any address"),
        ("a=224.0.0.1", "not a unicast address"),
        ("a=ff02::1", "not a unicast address"),
        ("a=255.255.255.255", "not a unicast address"),
        ("a=192.0.2.3%eth0", "only link-local"),
        ("a=a/b", "neither an IP address nor an interface name"),
        ("a=no-such-iface9", "there is no interface no-such-iface9"),
        ("a=fe80::3%br0", "fe80::3 is not an address of br0"),
        (
            "a=203.0.113.9",
            "203.0.113.9 is not an address of this host",
        ),
    ] {
        let text = refused(&[spec]);
        assert!(text.starts_with("--dev = \""), "{text}");
        assert!(text.contains(spec), "{text}");
        assert!(text.contains(reason), "{spec}: {text}");
        assert!(text.contains("allowed: "), "{text}");
    }
    let long = "x".repeat(MAX_DEVICE_NAME_LEN + 1);
    assert!(refused(&[&format!("{long}=lo")]).contains("64 characters"));
    assert!(resolve(&[&format!("{}=lo", &long[1..])]).is_ok());
    assert!(refused(&["a=192.0.2.9"]).contains("eth0 (192.0.2.3, 192.0.2.4, 2001:db8::3"));
}

#[test]
fn names_and_addresses_belong_to_one_device() {
    assert!(refused(&["a=127.0.0.2", "a=127.0.0.3"]).contains("two devices called a"));
    let alone = Settings::from_flags(&["none", "a=lo"].map(str::to_owned), None);
    assert!(alone.expect_err("two").to_string().contains("stands alone"));
    assert!(refused(&["a=lo", "b=::1"]).contains("a and b have an address in common"));
}

#[test]
fn the_environment_says_the_same_as_the_flags() {
    let vars = [
        ("ROCADE_DEVICES", " a=lo ;b=eth0;"),
        ("ROCADE_LOG", "debug"),
        ("ROCADE_IP", ""),
    ];
    let settings = Settings::from_env(env(&vars)).unwrap();
    assert_eq!(settings.devices_env().as_deref(), Some("a=lo;b=eth0"));
    assert_eq!(settings.log(), Some("debug"));

    let settings = Settings::from_env(env(&[("ROCADE_DEVICES", "none")])).unwrap();
    assert_eq!(settings.devices(), Some(&[][..]));

    let settings = Settings::from_env(env(&[("ROCADE_IP", "127.0.0.2,::1")])).unwrap();
    assert_eq!(
        settings.devices_env().as_deref(),
        Some("rocade0=127.0.0.2,::1")
    );
}

#[test]
fn what_rocade_run_hands_down_reads_back_the_same() {
    let devices = [
        &["a=lo", "b=fe80::3%eth0,192.0.2.3"][..],
        &["rocade0=::1"],
        &["none"],
    ];
    for specs in devices {
        let specs: Vec<String> = specs.iter().map(|&s| s.to_owned()).collect();
        let flags = Settings::from_flags(&specs, None).unwrap();
        let handed_down = flags.devices_env().unwrap();
        let child = Settings::from_env(env(&[("ROCADE_DEVICES", &handed_down)])).unwrap();
        assert_eq!(child.devices(), flags.devices());
    }
}

#[test]
fn wrong_variables_are_named() {
    let elsewhere = if cfg!(target_arch = "x86_64") {
        "pmull"
    } else {
        "avx512"
    };
    for (name, value, part) in [
        ("ROCADE_IP", "lo", "\"lo\" is not an IP address"),
        ("ROCADE_DEVICES", ";", "no device in it"),
        ("ROCADE_DEVICES", "host:mlx5_0", "cannot open mlx5_0"),
        ("ROCADE_BROKER", "maybe", "auto, embedded, or the path"),
        (
            "ROCADE_BROKER_IDLE_MS",
            "soon",
            "not a number of milliseconds",
        ),
        ("ROCADE_RUNTIME_DIR", "run", "the path is relative"),
        ("ROCADE_LINK", "pigeon", "allowed: auto, udp or shm"),
        ("ROCADE_ICRC", "abacus", "no such way to compute the ICRC"),
        ("ROCADE_ICRC", elsewhere, "this processor does not have it"),
        ("ROCADE_ICRC", elsewhere, "table"),
        ("ROCADE_PEERS", "10.0.0.0/40", "\"/40\" is not a prefix"),
        ("ROCADE_DCQCN", "yes", "on or off"),
        ("ROCADE_IDENTITY", "mlx5", "no ':' in it"),
        ("ROCADE_PKEYS", "0xffff,0", "partition 0"),
    ] {
        let error = Settings::from_env(env(&[(name, value)]))
            .expect_err(value)
            .to_string();
        assert!(
            error.starts_with(&format!("environment variable {name} = {value:?}: ")),
            "{error}"
        );
        assert!(error.contains(part), "{error}");
    }
    let both = env(&[("ROCADE_IP", "::1"), ("ROCADE_DEVICES", "a=lo")]);
    let error = Settings::from_env(both).expect_err("conflict").to_string();
    assert!(
        error.contains("ROCADE_DEVICES and environment variable ROCADE_IP"),
        "{error}"
    );
    assert!(Settings::from_flags(&["a=lo".to_owned()], Some("::1")).is_err());
}

#[test]
fn a_wrong_rule_is_named_with_where_it_stands() {
    let path = Path::new("/x/rocade.toml");
    let env = |name: &str| (name == ENV_FAULT).then(|| "dup; drop nht=3".into());
    let none = Settings::default;
    for (error, place) in [
        (Settings::from_env(env), "ROCADE_FAULT"),
        (
            Settings::from_toml("fault = [\"drop nht=3\"]", path),
            "/x/rocade.toml: fault",
        ),
        (
            none().with_links(None, &["drop nht=3".to_owned()]),
            "--fault",
        ),
    ] {
        let text = error.expect_err(place).to_string();
        for part in [place, "nht=3", "did you mean nth?", "opcode"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let error = Settings::from_toml("capture = \"x.pcapng\"", path);
    let text = error.expect_err("relative").to_string();
    assert!(
        text.contains("capture") && text.contains("absolute"),
        "{text}"
    );
}

#[test]
fn lists_of_a_file_say_what_variables_say() {
    let path = Path::new("/etc/rocade/rocade.toml");
    let file = |text: &str| Settings::from_toml(text, path);
    let both = file("devices = ['a=lo', 'b=127.0.0.2']\nfault = ['drop nth=1', 'ecn']").unwrap();
    let variables = Settings::from_env(env(&[
        ("ROCADE_DEVICES", "a=lo;b=127.0.0.2"),
        ("ROCADE_FAULT", "drop nth=1;ecn"),
    ]))
    .unwrap();
    assert_eq!(both.devices(), variables.devices());
    assert_eq!(both.faults(), variables.faults());
    assert_eq!(file("devices = []").unwrap().devices(), Some(&[][..]));
    let error = file("peers = []").unwrap_err().to_string();
    assert!(error.contains("the list is empty"), "{error}");
    let idle = file("broker_idle_ms = 7").unwrap().broker_config();
    assert_eq!(idle.idle_timeout.as_millis(), 7);
}

#[test]
fn the_file_says_the_same_as_the_environment() {
    let text = r#"
        devices = ["a=lo", "b=192.0.2.3"]
        broker = "embedded"
        runtime_dir = "/run/rocade"
        link = "udp"
        icrc = "table"
        peers = ["10.0.0.0/8", "::1"]
        capture = "/tmp/x.pcapng"
        fault = ["drop nth=3", "ecn; dup p=1%"]
        log = "info"
        broker_idle_ms = 5000
    "#;
    let path = Path::new("/x/rocade.toml");
    let settings = Settings::from_toml(text, path).unwrap();
    let config = settings.resolve(&laptop(), &identity()).unwrap();
    assert!(matches!(config.broker, BrokerMode::Embedded));
    assert_eq!(config.devices.len(), 2);
    assert_eq!(config.peers.to_string(), "10.0.0.0/8,::1/128");
    assert_eq!(config.capture.as_deref(), Some(Path::new("/tmp/x.pcapng")));
    let rules: Vec<String> = config.faults.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["drop nth=3", "ecn", "dup p=0.01"]);
    assert_eq!(settings.log(), Some("info"));
    assert_eq!(config.link, LinkMode::Udp);
    assert_eq!(config.icrc.map(Backend::name), Some("table"));
    assert_eq!(resolve(&["a=lo"]).unwrap().icrc, None);
    assert_eq!(Settings::from_toml("", path).unwrap(), Settings::default());
    assert_eq!(Settings::default().link(), LinkMode::Auto);

    let ip = Settings::from_toml("ip = \"127.0.0.2\"", path).unwrap();
    assert_eq!(ip.devices_env().as_deref(), Some("rocade0=127.0.0.2"));

    let unknown = Settings::from_toml("device = []", path)
        .expect_err("key")
        .to_string();
    for part in [
        "/x/rocade.toml",
        "device",
        "devices",
        "runtime_dir",
        "line 1",
    ] {
        assert!(unknown.contains(part), "{unknown}");
    }
    let value = Settings::from_toml("devices = [\"lo\"]", path)
        .expect_err("value")
        .to_string();
    assert!(
        value.starts_with("/x/rocade.toml: devices = \"lo\": "),
        "{value}"
    );
    assert!(Settings::from_toml("ip = \"::1\"\ndevices = [\"a=lo\"]", path).is_err());
    assert!(Settings::from_file(Path::new("/nonexistent/rocade.toml")).is_err());
}

#[test]
fn higher_sources_win_key_by_key() {
    let file = Settings::from_toml("devices = [\"f=lo\"]\nlog = \"warn\"", Path::new("f")).unwrap();
    let env = Settings::from_env(env(&[("ROCADE_DEVICES", "e=lo")])).unwrap();
    let flags = Settings::from_flags(&[], None).unwrap();
    let merged = flags.or(env).or(file);
    assert_eq!(merged.devices_env().as_deref(), Some("e=lo"));
    assert_eq!(merged.log(), Some("warn"));
}

#[test]
fn config_files_are_found_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let user = dir.path().join("xdg/rocade");
    let here = dir.path().join("project");
    for place in [&user, &here] {
        std::fs::create_dir_all(place).unwrap();
        std::fs::write(place.join(FILE_NAME), "").unwrap();
    }
    let xdg = dir.path().join("xdg");
    let vars = [("XDG_CONFIG_HOME", xdg.to_str().unwrap())];
    assert_eq!(
        config_file(env(&vars), Some(&here)),
        Some(here.join(FILE_NAME))
    );
    assert_eq!(config_file(env(&vars), None), Some(user.join(FILE_NAME)));
    let named = env(&[vars[0], ("ROCADE_CONFIG", "/no/such.toml")]);
    assert_eq!(
        config_file(named, Some(&here)),
        Some("/no/such.toml".into())
    );
}

#[test]
fn the_broker_is_configured_from_settings() {
    let vars = [
        ("ROCADE_BROKER", "/opt/rocade"),
        ("ROCADE_RUNTIME_DIR", "/run/me"),
        ("ROCADE_BROKER_IDLE_MS", "1500"),
    ];
    let config = Settings::from_env(env(&vars)).unwrap().broker_config();
    assert_eq!(config.runtime_dir.as_deref(), Some(Path::new("/run/me")));
    let command = ["/opt/rocade", "broker", "serve"].map(OsString::from);
    assert_eq!(config.command.as_deref(), Some(&command[..]));
    assert_eq!(config.idle_timeout, Duration::from_millis(1500));
}

#[test]
fn guids_are_stable_and_differ() {
    let guid = |host: &str, name, addr| HostIdentity::fixed(host).device_guid(name, ip(addr));
    let reference = guid("h", "rocade0", "127.0.0.1");
    assert_eq!(reference, guid("h", "rocade0", "127.0.0.1"));
    assert_eq!(reference.get() >> 48, 0x526f);
    for other in [
        guid("i", "rocade0", "127.0.0.1"),
        guid("h", "rocade1", "127.0.0.1"),
        guid("h", "rocade0", "127.0.0.2"),
    ] {
        assert_ne!(reference, other);
    }
    assert_eq!(HostIdentity::this_host(), HostIdentity::this_host());
}

#[test]
fn this_host_is_discovered() {
    let network = HostNetwork::discover().unwrap();
    let Some(lo) = network.by_name("lo") else {
        rocade_skip::skip!("the loopback interface is down");
    };
    assert!(
        lo.loopback && lo.index != 0 && lo.mtu_bytes >= 1280,
        "{lo:?}"
    );
    assert_eq!(
        network.interfaces.last().map(|i| i.name.as_str()),
        Some("lo")
    );
    assert_eq!(
        network.owner_of(ip("127.1.2.3")).map(|i| i.index),
        Some(lo.index)
    );
    assert!(
        network
            .owner_of(ip("192.0.2.77"))
            .is_none_or(|i| !i.addrs.is_empty())
    );
}

/// Names and identities set by the user take precedence.
#[test]
fn devices_are_like_others_where_the_user_says_nothing_else() {
    let settings = |vars: &[(&str, &str)]| {
        let var = |name: &str| {
            let found = vars.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        };
        Settings::from_env(var)
    };
    let devices = |vars: &[(&str, &str)]| {
        let config = settings(vars).unwrap().resolve(&laptop(), &identity());
        config.unwrap().devices
    };
    let names = |vars: &[(&str, &str)]| {
        let devices = devices(vars).into_iter();
        devices.map(|device| device.name).collect::<Vec<_>>()
    };
    let rxe = ("ROCADE_LIKE", "rxe");
    let mlx5 = ("ROCADE_LIKE", "mlx5");
    assert_eq!(names(&[rxe]), ["rxe0", "rxe1", "rxe2"]);
    assert_eq!(names(&[mlx5]), ["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(names(&[("ROCADE_LIKE", "rocade")])[0], "rocade0");
    assert_eq!(names(&[rxe, ("ROCADE_IP", "127.0.0.2")]), ["rxe0"]);
    assert_eq!(names(&[rxe, ("ROCADE_DEVICES", "a=lo")]), ["a"]);
    let handed_down = settings(&[mlx5, ("ROCADE_IP", "127.0.0.2")]).unwrap();
    assert_eq!(
        handed_down.devices_env().as_deref(),
        Some("mlx5_0=127.0.0.2")
    );
    let identity = |vars: &[(&str, &str)]| {
        let DeviceIdentity { vendor_id, part_id } = devices(vars)[0].identity;
        (vendor_id, part_id)
    };
    assert_eq!(identity(&[mlx5]), (0x02c9, 0x1017));
    assert_eq!(identity(&[rxe]), (0xff_ffff, 0));
    let own = ("ROCADE_IDENTITY", "0x02c9:0x101d");
    assert_eq!(identity(&[mlx5, own]), (0x02c9, 0x101d));
    let error = settings(&[("ROCADE_LIKE", "siw")]).expect_err("no such kind");
    let text = error.to_string();
    for part in ["ROCADE_LIKE", "siw", "rocade, rxe or mlx5"] {
        assert!(text.contains(part), "{text}");
    }
    let file = Settings::from_toml("like = \"rxe\"", Path::new("x.toml")).unwrap();
    assert_eq!(file.like(), Likeness::Rxe);
    let flag = Settings::default().with_like(Some("mlx5")).unwrap();
    assert_eq!(flag.or(file).like(), Likeness::Mlx5);
    assert!(Settings::default().with_like(Some("rxe0")).is_err());
}
