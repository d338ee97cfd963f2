//! Two sides of a connection in one engine, through shared memory, for tests.

use super::Engine;
use super::pending::common::Side;
use crate::config::{BrokerMode, EngineConfig, LinkMode};

/// Returns two sides with 64 bytes each at these addresses, not connected yet.
pub(super) fn unconnected(addresses: [&str; 2]) -> (Side, Side) {
    unconnected_with(addresses, 64)
}

/// Returns two sides with `len` bytes each at these addresses, not connected yet.
pub(super) fn unconnected_with(addresses: [&str; 2], len: usize) -> (Side, Side) {
    let [near, far] = addresses;
    let specs = [format!("near={near}"), format!("far={far}")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).expect("two devices");
    let link = LinkMode::Shm;
    let engine = Engine::new(EngineConfig { link, ..config }).expect("an engine");
    let a = Side::on_device(engine.clone(), "near", len);
    let b = Side::on_device(engine, "far", len);
    (a, b)
}

/// Moves connected sides to their link. When the first one was connected, the address of the other
/// one was not in use yet.
pub(super) fn use_shm(side: &Side) {
    let engine = &side.engine.inner;
    for peer_link in engine.links.peer_links.read().clone() {
        engine.move_qps_to(&peer_link);
    }
}
