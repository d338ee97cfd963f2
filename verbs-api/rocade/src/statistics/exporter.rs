//! `rocade exporter`: the statistics as a page for Prometheus.

use std::process::ExitCode;

use rocade_emulator::broker::BrokerConfig;
use tiny_http::{Header, Method, Request, Response, Server};

use super::args::ExporterArgs;
use super::gather;
use super::openmetrics::{Format, text};
use crate::error::CliError;
use crate::output;

const INDEX: &str = "The statistics of Rocade are at /metrics\n";

/// Answers requests until the process is ended.
pub(super) fn run(args: &ExporterArgs, config: &BrokerConfig) -> Result<ExitCode, CliError> {
    let server = Server::http(args.listen).map_err(|error| {
        CliError::new(format!("failed to listen at {}: {error}", args.listen))
            .hint("--listen 127.0.0.1:0 takes a free port")
    })?;
    output::line(format_args!("http://{}/metrics", server.server_addr()))?;
    for request in server.incoming_requests() {
        let answer = answer(&request, config, args.qps);
        // The client may have gone.
        if let Err(error) = request.respond(answer) {
            tracing::debug!(%error, "failed to answer a request");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(
    request: &Request,
    config: &BrokerConfig,
    with_qps: bool,
) -> Response<std::io::Cursor<Vec<u8>>> {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return page(405, Format::Text, "GET only\n");
    }
    let path = request.url().split('?').next();
    match path {
        Some("/metrics") => {}
        Some("/") => return page(200, Format::Text, INDEX),
        _ => return page(404, Format::Text, INDEX),
    }
    let mut headers = request.headers().iter();
    let accept = headers.find(|header| header.field.equiv("Accept"));
    let format = accept.map_or(Format::Text, |accept| {
        Format::accepted(accept.value.as_str())
    });
    match gather(config) {
        Ok(processes) => page(200, format, text(&processes, with_qps, format)),
        Err(error) => page(503, Format::Text, format!("{}\n", error.text())),
    }
}

fn page(
    status: u16,
    format: Format,
    text: impl Into<String>,
) -> Response<std::io::Cursor<Vec<u8>>> {
    let response = Response::from_string(text).with_status_code(status);
    match Header::from_bytes("Content-Type", format.content_type()) {
        Ok(header) => response.with_header(header),
        Err(()) => response,
    }
}
