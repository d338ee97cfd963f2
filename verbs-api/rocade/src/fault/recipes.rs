//! `rocade fault recipes`: the recipes, and what each stands for.

use std::process::ExitCode;

use rocade_emulator::faults::recipes::{self, Recipe};
use serde_json::{Value, json};

use crate::cli::RecipeArgs;
use crate::error::CliError;
use crate::{output, table};

/// Prints the table of all recipes, or explains one.
pub(crate) fn print(args: &RecipeArgs) -> Result<ExitCode, CliError> {
    let Some(name) = &args.name else {
        print_all(args.output.json)?;
        return Ok(ExitCode::SUCCESS);
    };
    let plain = name.strip_prefix(recipes::PREFIX).unwrap_or(name);
    let recipe = Recipe::find(plain).map_err(|error| {
        CliError::new(error.to_string()).hint("`rocade fault recipes` describes them")
    })?;
    if args.output.json {
        output::json(&view(recipe))?;
    } else {
        explain(recipe)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all recipes as a table or as JSON.
pub(crate) fn print_all(as_json: bool) -> Result<(), CliError> {
    if as_json {
        let all: Vec<_> = Recipe::ALL.iter().map(view).collect();
        return output::json(&json!({ "recipes": all }));
    }
    let mut rows = table::plain();
    rows.set_header(["recipe", "rules with the defaults"]);
    for recipe in Recipe::ALL {
        rows.add_row([recipe.name.to_owned(), texts(recipe).join("\n")]);
    }
    output::line(rows)?;
    output::line("`rocade fault recipes NAME` tells the hardware's behaviour and the parameters")
}

fn explain(recipe: &Recipe) -> Result<(), CliError> {
    output::line(format_args!("{}{}", recipes::PREFIX, recipe.name))?;
    output::line(format_args!("hardware  {}", recipe.hardware))?;
    output::line(format_args!("finds     {}", recipe.finds))?;
    for text in texts(recipe) {
        output::line(format_args!("rule      {text}"))?;
    }
    if recipe.ends_process {
        output::line(
            "give it to the process that is to fail, which is the peer of the tested one",
        )?;
    }
    let mut rows = table::plain();
    rows.set_header(["parameter", "default", "meaning"]);
    for parameter in recipe.parameters {
        rows.add_row([
            parameter.name,
            parameter.default.unwrap_or("-"),
            parameter.meaning,
        ]);
    }
    output::line(rows)
}

/// Returns the rules with the defaults.
fn texts(recipe: &Recipe) -> Vec<String> {
    // Defaults are valid, which a test of the table checks.
    recipe.texts(&[]).unwrap_or_default()
}

fn view(recipe: &Recipe) -> Value {
    let parameters: Vec<_> = recipe
        .parameters
        .iter()
        .map(|parameter| {
            json!({
                "name": parameter.name,
                "default": parameter.default,
                "meaning": parameter.meaning,
            })
        })
        .collect();
    json!({
        "name": recipe.name,
        "hardware": recipe.hardware,
        "finds": recipe.finds,
        "ends_process": recipe.ends_process,
        "rules": texts(recipe),
        "parameters": parameters,
    })
}
