//! `rocade-conformance`: runs the suite against any device that has verbs, or against Rocade.

mod command;

use std::process::ExitCode;

use clap::Parser as _;

use command::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match command::execute(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rocade-conformance: {error}");
            ExitCode::from(2)
        }
    }
}
