//! Tests of recipes, chaos and the search for the smallest set of rules, from a user's view. The
//! program is a script that fails with some rules, so that no devices are needed.
#![expect(clippy::unwrap_used, reason = "in a test")]

mod build;

use std::process::{Command, Output};

use build::{Build, Limited as _, assert_refused, text};
use serde_json::Value;

fn run(command: &mut Command) -> Output {
    let output = command.run();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn a_program_gets_a_recipe_and_errors_offer_the_nearest_name() {
    let build = Build::with_libraries();
    let with = |recipe: &str| {
        let args = ["run", "--ip", "127.0.0.2", "--fault", recipe, "--", "env"];
        build.rocade(&args).run()
    };
    let seen = text(&with("recipe:lossy-1pct,p=3%,at=2s").stdout);
    let variable = "ROCADE_FAULT=recipe:lossy-1pct,p=3%,at=2s";
    assert!(seen.lines().any(|line| line == variable), "{seen}");
    for (recipe, parts) in [
        (
            "recipe:losy-1pct",
            &["--fault", "recipe:losy-1pct", "did you mean lossy-1pct?"],
        ),
        (
            "recipe:lossy-1pct,tims=3",
            &["--fault", "tims=3", "did you mean times?"],
        ),
        (
            "recipe:lossy-1pct,p=2",
            &["--fault", "p=2", "not a probability"],
        ),
    ] {
        assert_refused(&with(recipe), 125, parts);
    }
}

#[test]
fn recipes_are_listed_and_explained() {
    let build = Build::new();
    let table = text(&run(&mut build.rocade(&["fault", "recipes"])).stdout);
    assert!(table.contains("lossy-1pct"), "{table}");
    assert!(table.contains("rnr for=200ms every=1s times=5"), "{table}");
    let same = text(&run(&mut build.rocade(&["fault", "list", "--recipes"])).stdout);
    assert_eq!(same, table);
    let one = text(&run(&mut build.rocade(&["fault", "recipes", "mtu-blackhole"])).stdout);
    for part in ["smaller MTU", "drop size=1501..", "shortest IP packet"] {
        assert!(one.contains(part), "{part} is not in {one}");
    }
    let json = text(&run(&mut build.rocade(&["fault", "recipes", "--json"])).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    let names: Vec<_> = json["recipes"].as_array().unwrap().iter().collect();
    assert!(
        names.iter().any(|recipe| recipe["name"] == "peer-crash"),
        "{json}"
    );
    let unknown = build.rocade(&["fault", "recipes", "mtu-blackhol"]).run();
    assert_refused(&unknown, 125, &["did you mean mtu-blackhole?"]);
}

#[test]
fn a_seed_draws_the_same_recipes_and_they_are_printed() {
    let build = Build::with_libraries();
    let draw = |seed: &str| {
        let args = [
            "run",
            "--ip",
            "127.0.0.2",
            "--chaos",
            seed,
            "--",
            "sh",
            "-c",
            "echo $ROCADE_FAULT",
        ];
        let output = run(&mut build.rocade(&args));
        (text(&output.stdout), text(&output.stderr))
    };
    let (rules, printed) = draw("42,within=3s,count=4");
    assert_eq!(rules.trim().split(';').count(), 4, "{rules}");
    for recipe in rules.trim().split(';') {
        let line = format!("rocade: chaos 42,within=3s,count=4: {recipe}");
        assert!(
            printed.lines().any(|printed| printed == line),
            "{line} is not in {printed}"
        );
    }
    assert_eq!(draw("42,within=3s,count=4").0, rules);
    assert_ne!(draw("43,within=3s,count=4").0, rules);
    let args = ["run", "--chaos", "x", "--", "true"];
    assert_refused(
        &build.rocade(&args).run(),
        125,
        &["--chaos x", "not a seed"],
    );
}

/// Runs `rocade fault minimize` on a script.
fn minimize(args: &[&str], script: &str) -> Output {
    let build = Build::with_libraries();
    let mut all = vec!["fault", "minimize", "--ip", "127.0.0.2"];
    all.extend(args);
    all.extend(["--", "sh", "-c", script]);
    build.rocade(&all).run()
}

#[test]
fn the_smallest_set_that_fails_is_found() {
    let script = r#"case "$ROCADE_FAULT" in *nth=3*late*) exit 3;; esac"#;
    let rules = "dup nth=1; drop nth=3; ecn; recipe:lossy-1pct; late by=5ms; rnr for=1s";
    let output = minimize(&["--fault", rules], script);
    assert!(output.status.success(), "{output:?}");
    let line = text(&output.stdout);
    let quoted = script.replace('\'', r"'\''");
    let expected = format!(
        "rocade run --ip 127.0.0.2 --fault 'drop nth=3' --fault 'late by=5ms' -- sh -c '{quoted}'\n"
    );
    assert_eq!(line, expected);
    let progress = text(&output.stderr);
    assert!(
        progress.contains("rocade: run 1, 6 rules: exit code 3\n"),
        "{progress}"
    );
    assert!(
        progress.contains("rocade: run 2, no rule: succeeds\n"),
        "{progress}"
    );
}

#[test]
fn a_hang_is_a_failure_and_what_cannot_be_found_is_said() {
    let script = r#"case "$ROCADE_FAULT" in *ecn*) sleep 1000 & wait;; esac"#;
    let output = minimize(&["--timeout", "1", "--fault", "ecn; dup"], script);
    assert!(
        text(&output.stdout).contains(" --fault ecn -- sh "),
        "{output:?}"
    );
    assert!(
        text(&output.stderr).contains("hangs, killed after 1 s"),
        "{output:?}"
    );

    let never = minimize(&["--fault", "ecn"], "true");
    assert_refused(&never, 1, &["does not fail with these rules"]);
    let always = minimize(&["--chaos", "1"], "exit 1");
    assert_refused(&always, 1, &["fails without any rule"]);
    assert_refused(
        &minimize(&[], "true"),
        125,
        &["no rules to leave out", "--chaos SEED"],
    );
    let invalid = minimize(&["--fault", "recipe:incst"], "true");
    assert_refused(&invalid, 125, &["did you mean incast?"]);

    let limited = minimize(
        &["--runs", "2", "--fault", "ecn; dup"],
        script.replace("sleep 1000 & wait", "exit 1").as_str(),
    );
    assert!(
        text(&limited.stdout).contains("--fault ecn --fault dup"),
        "{limited:?}"
    );
    assert!(
        text(&limited.stderr).contains("the limit of runs or time"),
        "{limited:?}"
    );
}
