//! Encoding of the reports of fault rules.

use super::codec::{Reader, Writer};
use super::{MAX_NAME_LEN, MAX_RULE_LEN, ProcessReport, ProtocolError, ReportPart, ReportedState};
use crate::faults::{MAX_OBJECTS, RuleSummary};
use crate::steering::ProcessSlot;

/// Longest text of an object in bytes.
const MAX_OBJECT_LEN: usize = 64;

impl Writer {
    pub(super) fn report_part(&mut self, part: &ReportPart) {
        let ReportPart {
            number,
            total,
            process,
        } = part;
        self.u64(*number);
        self.u16(*total);
        self.u8(process.slot.get());
        self.u32(process.pid);
        self.text(&process.name, MAX_NAME_LEN);
        self.u8(match process.state {
            ReportedState::Running => 0,
            ReportedState::Exited => 1,
            ReportedState::Ended => 2,
        });
        self.list(&process.rules, Self::summary);
    }

    fn summary(&mut self, rule: &RuleSummary) {
        self.text(&rule.text, MAX_RULE_LEN);
        for value in [rule.hits, rule.other_hits] {
            self.u64(value);
        }
        for time in [rule.first_ns, rule.last_ns] {
            self.u8(time.is_some().into());
            self.u64(time.unwrap_or(0));
        }
        let objects = &rule.objects[..rule.objects.len().min(MAX_OBJECTS)];
        self.list(objects, |w, (object, hits)| {
            w.text(object, MAX_OBJECT_LEN);
            w.u64(*hits);
        });
    }
}

impl Reader<'_> {
    pub(super) fn report_part(&mut self) -> Result<ReportPart, ProtocolError> {
        let (number, total) = (self.u64()?, self.u16()?);
        let (slot, pid) = (ProcessSlot::new(self.u8()?), self.u32()?);
        let name = self.text(MAX_NAME_LEN)?;
        let state = match self.u8()? {
            0 => ReportedState::Running,
            1 => ReportedState::Exited,
            2 => ReportedState::Ended,
            _ => return Err(ProtocolError::Field("state")),
        };
        let rules = self.list(Self::summary)?;
        Ok(ReportPart {
            number,
            total,
            process: ProcessReport {
                slot,
                pid,
                name,
                state,
                rules,
            },
        })
    }

    fn summary(&mut self) -> Result<RuleSummary, ProtocolError> {
        let text = self.text(MAX_RULE_LEN)?;
        let (hits, other_hits) = (self.u64()?, self.u64()?);
        let (first_ns, last_ns) = (self.time()?, self.time()?);
        let count = self.count(MAX_OBJECTS)?;
        let objects = (0..count).map(|_| Ok((self.text(MAX_OBJECT_LEN)?, self.u64()?)));
        Ok(RuleSummary {
            text,
            hits,
            first_ns,
            last_ns,
            objects: objects.collect::<Result<_, _>>()?,
            other_hits,
        })
    }

    fn time(&mut self) -> Result<Option<u64>, ProtocolError> {
        match (self.flag()?, self.u64()?) {
            (true, ns) => Ok(Some(ns)),
            (false, 0) => Ok(None),
            (false, _) => Err(ProtocolError::Field("time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_LEN, Request, Response};
    use super::*;
    use crate::broker::fault_reports::RULES_AT_ONCE;

    fn response(text: &str, rules: usize, state: ReportedState) -> Response {
        let rule = RuleSummary {
            text: text.to_owned(),
            hits: u64::MAX,
            first_ns: Some(0),
            last_ns: None,
            objects: vec![(text.to_owned(), u64::MAX); MAX_OBJECTS],
            other_hits: 3,
        };
        let process = ProcessReport {
            slot: ProcessSlot::new(7),
            pid: 1,
            name: text.to_owned(),
            state,
            rules: vec![rule; rules],
        };
        let part = ReportPart {
            number: u64::MAX,
            total: u16::MAX,
            process,
        };
        Response::FaultReportPart {
            forgotten: 2,
            part: Some(part),
        }
    }

    #[test]
    fn reports_arrive_as_they_are() {
        use ReportedState::{Ended, Exited, Running};
        for state in [Running, Exited, Ended] {
            let response = response("drop nth=3", RULES_AT_ONCE, state);
            assert_eq!(Response::decode(&response.encode(), 0), Ok(response));
        }
        let none = Response::FaultReportPart {
            forgotten: 0,
            part: None,
        };
        assert_eq!(Response::decode(&none.encode(), 0), Ok(none));
        let request = Request::FaultReportFrom {
            number: u64::MAX,
            rule: 3,
        };
        assert_eq!(Request::decode(&request.encode(), 0), Ok(request));
    }

    #[test]
    fn the_largest_part_fits() {
        let text = "x".repeat(MAX_RULE_LEN + 9);
        let bytes = response(&text, RULES_AT_ONCE, ReportedState::Ended).encode();
        assert!(bytes.len() <= MAX_LEN, "{}", bytes.len());
        let Ok(Response::FaultReportPart {
            part: Some(part), ..
        }) = Response::decode(&bytes, 0)
        else {
            panic!("the part cannot be read")
        };
        let rule = &part.process.rules[RULES_AT_ONCE - 1];
        assert_eq!(rule.text.len(), MAX_RULE_LEN);
        assert_eq!(rule.objects[MAX_OBJECTS - 1].0.len(), MAX_OBJECT_LEN);
    }
}
