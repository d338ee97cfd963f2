//! Manual pages and shell completions, generated from the definition of the command line.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::cli::{Cli, Shell};
use crate::error::CliError;
use crate::output;

/// `rocade man`: prints the page of the command or of a subcommand.
pub(crate) fn print_page(words: &[String]) -> Result<ExitCode, CliError> {
    let wanted = format!(
        "rocade{}.1",
        words
            .iter()
            .map(|word| format!("-{word}"))
            .collect::<String>()
    );
    let pages = pages();
    let Some((_, text)) = pages.iter().find(|(name, _)| *name == wanted) else {
        let names = pages.iter().map(|(name, _)| name.trim_end_matches(".1"));
        return Err(CliError::new(format!("no manual page {wanted}"))
            .hint(format!(
                "available: {}",
                names.collect::<Vec<_>>().join(", ")
            ))
            .exit(2));
    };
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// `rocade completions`: prints the completion script of a shell.
pub(crate) fn print_completions(shell: Shell) -> Result<ExitCode, CliError> {
    output::print(completions(shell))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the completion script of a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rocade", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns file names and texts of all pages, that of the command first.
pub(crate) fn pages() -> Vec<(String, String)> {
    let mut top = Cli::command().disable_help_subcommand(true);
    top.build();
    let mut pages = Vec::new();
    add_pages(&top, "rocade", &mut pages);
    pages
}

fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, String)>) {
    pages.push((format!("{name}.1"), page(command, name)));
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        add_pages(inner, &format!("{name}-{}", inner.get_name()), pages);
    }
}

fn page(command: &Command, name: &str) -> String {
    // The name is leaked. There are about ten names.
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let man = Man::new(command.clone().name(name))
        .title(name.to_uppercase())
        .source(concat!("Rocade ", env!("CARGO_PKG_VERSION")))
        .manual("Rocade");
    let mut text = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = man.render_title(&mut text);
    let _ = man.render_name_section(&mut text);
    let _ = man.render_synopsis_section(&mut text);
    let _ = man.render_description_section(&mut text);
    let _ = man.render_options_section(&mut text);
    if command.has_subcommands() {
        let _ = man.render_subcommands_section(&mut text);
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    let long = command.get_after_long_help();
    if let Some(after) = long.or_else(|| command.get_after_help()) {
        text.push_str(&sections(&after.to_string()));
    }
    text
}

/// Converts the text below a help message, and keeps the lines of tables and examples.
fn sections(help: &str) -> String {
    let mut text = String::new();
    for block in help.split("\n\n") {
        let (head, body) = block.split_once(":\n").unwrap_or(("Notes", block));
        let title = head.split(" (").next().unwrap_or(head).to_uppercase();
        // Writing to a String cannot fail.
        let _ = write!(text, ".SH {title}\n.nf\n");
        for line in body.lines() {
            let _ = writeln!(text, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"));
        }
        text.push_str(".fi\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_examples() {
        let pages = pages();
        let names: Vec<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "rocade.1",
            "rocade-run.1",
            "rocade-devices.1",
            "rocade-broker-status.1",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert_eq!(names[0], "rocade.1");
        let run = &pages
            .iter()
            .find(|(name, _)| name == "rocade-run.1")
            .unwrap()
            .1;
        for part in [
            ".TH ROCADE-RUN 1",
            ".SH EXAMPLES\n.nf\n",
            "ibv_rc_pingpong \\-g 0",
            "\\-\\-dev",
        ] {
            assert!(run.contains(part), "{part:?} is not in {run}");
        }
        assert!(pages[0].1.contains(".SH SETTINGS\n"), "{}", pages[0].1);
    }
}
