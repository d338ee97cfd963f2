use super::Recipe;
use crate::faults::FaultRule;

fn rules(text: &str) -> Vec<String> {
    let rules = FaultRule::parse_list(text).unwrap_or_else(|error| panic!("{error}"));
    rules.iter().map(FaultRule::to_string).collect()
}

fn error(text: &str) -> String {
    FaultRule::parse_list(text).expect_err(text).to_string()
}

#[test]
fn a_recipe_among_rules_is_its_rules() {
    assert_eq!(rules("recipe:lossy-1pct"), ["drop p=0.01"]);
    assert_eq!(
        rules("ecn every=9; recipe:lossy-1pct,p=3%,at=1s,for=2s; dup"),
        ["ecn every=9", "drop p=0.03 at=1s for=2s", "dup"]
    );
    // Spaces and lines separate, too, and a comment is none of it.
    assert_eq!(
        rules(" recipe:mtu-blackhole size=2001 # a comment\nrecipe:out-of-mr,max=3"),
        ["drop size=2001..", "limit max_mr=3"]
    );
}

#[test]
fn errors_name_the_parameter_and_the_nearest_name() {
    for (text, parts) in [
        (
            "recipe:losy-1pct",
            &["`recipe:losy-1pct`", "did you mean lossy-1pct?"][..],
        ),
        ("recipe:", &["`recipe:`", "allowed: bit-errors, "]),
        (
            "recipe:rnr-storm,tmes=3",
            &["`tmes=3`", "did you mean times?", "of recipe rnr-storm"],
        ),
        (
            "recipe:rnr-storm,3",
            &["`3`", "it is not KEY=VALUE", "for, every, times"],
        ),
        (
            "recipe:rnr-storm,times=3,times=4",
            &["`times=4`", "given twice"],
        ),
        (
            "recipe:rnr-storm,times=",
            &["`times=`", "missing", "times=5"],
        ),
        (
            "recipe:lossy-1pct,p=200%",
            &["`p=200%`", "not a probability (recipe lossy-1pct)"],
        ),
        (
            "recipe:out-of-mr,max=many",
            &["`max=many`", "not a number (recipe out-of-mr)"],
        ),
        (
            "recipe:rnr-storm,for=2s,every=1s",
            &[
                "`recipe:rnr-storm,for=2s,every=1s`",
                "for= is not shorter than every=",
            ],
        ),
    ] {
        let error = error(text);
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn each_recipe_is_valid_and_takes_all_of_its_parameters() {
    let names: Vec<_> = Recipe::ALL.iter().map(|recipe| recipe.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    for recipe in Recipe::ALL {
        let rules = recipe
            .rules(&[])
            .unwrap_or_else(|error| panic!("{}: {error}", recipe.name));
        assert!(!rules.is_empty(), "{}", recipe.name);
        assert!(recipe.hardware.ends_with('.') && recipe.finds.ends_with('.'));
        for parameter in recipe.parameters {
            let (name, default) = (parameter.name, parameter.default);
            let in_rules = recipe.rules.iter().any(|rule| {
                rule.contains(&format!("[{name}]")) || rule.contains(&format!("{{{name}}}"))
            });
            assert!(in_rules, "{} has no use for {name}", recipe.name);
            assert!(!parameter.meaning.is_empty());
            let Some(default) = default else { continue };
            let given = recipe.rules(&[&format!("{name}={default}")]);
            assert_eq!(given.as_ref(), Ok(&rules), "{} {name}", recipe.name);
        }
        for text in recipe.texts(&[]).expect("defaults") {
            assert!(!text.contains(['[', '{']), "{text}");
        }
    }
}
