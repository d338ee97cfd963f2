//! A check that property tests are repeatable: `.cargo/config.toml` fixes their seed unless the
//! environment does.

use proptest::test_runner::{Config, RngSeed};

#[test]
fn the_seed_of_property_tests_is_fixed() {
    let seed = Config::default().rng_seed;
    println!("PROPTEST_RNG_SEED={seed}");
    assert!(matches!(seed, RngSeed::Fixed(_)), "set PROPTEST_RNG_SEED");
}
