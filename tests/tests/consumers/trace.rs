//! `rocade trace`: what a user sees of programs that work, and of programs that wait for ever.

use std::{path::Path, process::Command};

use rocade_tests::{
    harness::{Finished, Rig, free_port},
    or_skip,
};

use crate::{LIMIT, LINKS, PERFTEST, UTILS};

/// The programs that the test of hanging programs needs, with their packages.
const COMPILER: &[(&str, &str)] = &[("gcc", "gcc"), ("ip", "iproute2")];

/// Runs `rocade trace` with these arguments, in the network of the rig.
fn trace(rig: &Rig, arguments: &[&str]) -> Finished {
    let path = rig.rocade_path().to_string_lossy().into_owned();
    let words: Vec<&str> = [path.as_str(), "trace", "--dev", "rocade0=lo"]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    rig.start_plain("rocade trace", &words).finish(LIMIT)
}

/// Returns a shell command that runs a server and a client of a program.
fn pair(program: &str) -> String {
    let port = free_port();
    let program = program.replace("PORT", &port.to_string());
    // The client tries again until the server listens.
    format!(
        "{program} & server=$!; until ss -ltn | grep -q ':{port} '; do kill -0 $server || exit 1; \
         done; {program} 127.0.0.1 && wait $server"
    )
}

/// Fails unless all words are in one line of the text.
fn assert_line(text: &str, words: &[&str]) {
    let found = text
        .lines()
        .any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "no line has {words:?}:\n{text}");
}

#[test]
fn calls_posts_and_completions_of_two_processes_are_printed() {
    for link in LINKS {
        let rig = or_skip!(Rig::loopback(UTILS)).with_link(link);
        let script = pair("ibv_rc_pingpong -g 0 -n 20 -p PORT");
        let output = trace(&rig, &["--", "sh", "-c", script.as_str()]).expect_success();
        assert_line(&output, &["ibv_open_device(device=0x", ") = 0x", "s>"]);
        assert_line(&output, &["ibv_reg_mr(pd=", "access=LOCAL_WRITE", "lkey="]);
        assert_line(
            &output,
            &["ibv_modify_qp(qp=", "qp_state=RTR", "path_mtu=1024", "= 0"],
        );
        let sent = ["ibv_post_send(qp=", "SEND, 4096 bytes", "SIGNALED"];
        assert_line(&output, &sent);
        // A completion that `ibv_poll_cq` itself brings about does not wait for it.
        let parts = ["SUCCESS, SEND,", "after ", "queue ", "wire ", "peer "];
        assert_line(&output, &parts);
        assert_line(&output, &["SUCCESS, RECV, 4096 bytes"]);
        let processes = output
            .lines()
            .filter(|line| line.contains("process: ibv_rc_pingpong"));
        assert_eq!(processes.count(), 2, "{output}");
        assert!(!output.contains("are lost"), "{output}");
    }
}

#[test]
fn filters_show_a_part_and_a_count_shows_the_sums() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let script = pair("ib_send_lat -d rocade0 -F -x 0 -n 100 -p PORT");
    let only = ["-e", "ibv_create_qp", "--", "sh", "-c", script.as_str()];
    let output = trace(&rig, &only).expect_success();
    assert_line(&output, &["ibv_create_qp", "qp_type=RC", "{qp_num=0x"]);
    assert!(!output.contains("ibv_reg_mr"), "{output}");
    let script = pair("ib_send_lat -d rocade0 -F -x 0 -n 100 -p PORT");
    let file = rig.dir().join("table").to_string_lossy().into_owned();
    let words = ["-c", "-o", &file, "--", "sh", "-c", script.as_str()];
    let others = trace(&rig, &words).expect_success();
    let output = std::fs::read_to_string(&file).expect("a table");
    let head = ["call", "count", "failed", "p50", "p99", "max"];
    assert_line(&output, &head);
    assert!(!others.contains("p99"), "{others}");
    let row = output
        .lines()
        .find(|line| line.trim_start().starts_with("SEND "));
    let row: Vec<&str> = row.expect("a row").split_whitespace().collect();
    let count: u32 = row[1].parse().expect("a number");
    assert!(count >= 200, "{output}");
    assert!(!output.contains("ibv_create_qp("), "{output}");
}

/// The program asks for a completion of every 100th request.
#[test]
fn unsignaled_requests_are_counted_and_drawn() {
    let rig = or_skip!(Rig::loopback(PERFTEST));
    let timeline = rig.dir().join("x.pftrace").to_string_lossy().into_owned();
    let script = pair("ib_write_bw -d rocade0 -F -x 0 -s 8 -n 2000 -Q 100 -p PORT");
    let words = ["-c", "--perfetto", &timeline, "--", "sh", "-c", &script];
    let output = trace(&rig, &words).expect_success();
    let row = output
        .lines()
        .find(|line| line.trim_start().starts_with("RDMA_WRITE "));
    let row: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(row[1..3], ["2000", "0"], "{output}");
    let page = rig.rocade(&["trace", "show", &timeline, "-o", "-"]);
    let page = page.expect_success();
    let drawn = page.matches("\"RDMA_WRITE, unsignaled\"").count();
    assert_eq!(drawn, 1980, "slices of unsignaled requests");
}

#[test]
fn a_lost_packet_is_shown_with_its_rule_and_its_retransmission() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let script = pair("ibv_rc_pingpong -g 0 -n 20 -p PORT");
    let rule = "drop opcode=SEND_LAST nth=3";
    let words = [
        "--fault",
        rule,
        "--failed",
        "--",
        "sh",
        "-c",
        script.as_str(),
    ];
    let output = trace(&rig, &words).expect_success();
    assert_line(&output, &["** QP 0x", "SEND_LAST", "lost", "(fault rule)"]);
    assert_line(&output, &["** QP 0x", "sent again"]);
}

/// Compiles a program, with further arguments of the compiler.
fn compile(rig: &Rig, name: &str, arguments: &[&str]) -> String {
    let target = rig.dir().join(name).to_string_lossy().into_owned();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.current_dir(sources)
        .args(["-Wall", "-Wextra", "-Werror", "-o", &target])
        .arg(format!("interop/trace/{name}.c"))
        .args(arguments);
    assert!(gcc.status().is_ok_and(|status| status.success()), "gcc");
    target
}

/// Compiles the program that calls verbs of each family, for the libraries that are built.
fn compile_families(rig: &Rig) -> String {
    let test = std::env::current_exe().unwrap_or_default();
    let built = test.ancestors().nth(2).expect("target/<profile>/deps");
    let libraries = ["ibverbs", "mlx5", "efa"].map(|name| {
        let library = built.join(format!("lib{name}.so"));
        library.to_string_lossy().into_owned()
    });
    let mut arguments = vec![
        "-I../verbs-api/libibverbs/tests/c",
        "-I../verbs-api/include",
        "-Wl,--no-as-needed",
    ];
    arguments.extend(libraries.iter().map(String::as_str));
    compile(rig, "families", &arguments)
}

#[test]
fn experimental_verbs_are_decoded() {
    let rig = or_skip!(Rig::loopback(COMPILER));
    let program = compile_families(&rig);
    let run = |family| trace(&rig, &["--like", "mlx5", "--", &program, family]).expect_success();

    let output = run("cross-channel");
    assert_line(
        &output,
        &["ibv_exp_create_qp(", "CROSS_CHANNEL|MANAGED_SEND"],
    );
    let post = "ibv_exp_post_send(qp=0x";
    assert_line(
        &output,
        &[post, "SEND_ENABLE, ", "wqe_count=1, WAIT_EN_LAST}"],
    );
    assert_line(&output, &[post, "CQE_WAIT, ", "cq_count=1, SIGNALED}"]);
    assert_line(
        &output,
        &[post, "RDMA_WRITE, 16 bytes", "WITH_CALC ADD UINT"],
    );
    assert_line(&output, &["| ibv_exp_post_send(", "wr_id=0xd, NOP"]);
    assert_line(&output, &["ibv_exp_post_task(context=0x", ") = 0"]);

    let output = run("masked");
    let add = "add_val=0x77, field_boundary=0x8000";
    assert_line(&output, &["EXT_MASKED_ATOMIC_FETCH_AND_ADD", add]);
    let swap = "compare_val=0x77, compare_mask=0xff, swap_val=0x99";
    assert_line(&output, &["EXT_MASKED_ATOMIC_CMP_AND_SWP", swap]);
    assert_line(
        &output,
        &["ibv_exp_poll_cq(", "MASKED_COMP_SWAP,", "after "],
    );

    let output = run("umr");
    assert_line(
        &output,
        &["ibv_exp_create_mr(", "create_flags=INDIRECT_KLMS"],
    );
    assert_line(&output, &["UMR_FILL, ", "MR_LIST of 2", "base_addr=0x1000"]);
    assert_line(&output, &["ibv_exp_poll_cq(", "wr_id=0x20, SUCCESS, UMR,"]);

    let output = run("dct");
    assert_line(
        &output,
        &["ibv_exp_create_dct(", "dc_key=0x1d", "{dct_num=0x"],
    );
    assert_line(&output, &["ibv_exp_query_dct(", "state=ACTIVE"]);
    assert_line(
        &output,
        &["ibv_exp_modify_qp(", "qp_state=INIT", "dct_key=0x1d"],
    );
    assert_line(&output, &["dct_number=0x", "dct_access_key=0x1d", "EINVAL"]);
}

#[test]
fn direct_verbs_and_older_calls_are_decoded() {
    let rig = or_skip!(Rig::loopback(COMPILER));
    let program = compile_families(&rig);
    let run = |family| trace(&rig, &["--like", "mlx5", "--", &program, family]).expect_success();

    let output = run("xrc");
    assert_line(&output, &["ibv_create_xrc_rcv_qp(", ") = 0 qp_num="]);
    assert_line(&output, &["ibv_reg_xrc_rcv_qp(domain=0x", "= 22 EINVAL"]);

    let output = run("mlx5");
    assert_line(&output, &["mlx5dv_is_supported(device=0x", ") = true"]);
    assert_line(
        &output,
        &["mlx5dv_create_qp(", "dc_type=DCT, dct_access_key=0x1d"],
    );
    assert_line(
        &output,
        &["RDMA_WRITE, 16 bytes", "dct_number=0x", "key=0x1d"],
    );
    assert_line(
        &output,
        &["UMR_FILL, ", "mkey {lkey=0x", "2 entries of 32 bytes"],
    );
    let missing = ["mlx5dv_devx_obj_create(..) = unsupported EOPNOTSUPP"];
    assert_line(&output, &missing);

    let output = run("efa");
    assert_line(&output, &["efadv_create_comp_cntr(", "= NULL EINVAL"]);
    assert_line(&output, &["efadv_query_device(..) = unsupported"]);
}

#[test]
fn a_program_that_waits_for_ever_is_explained() {
    let rig = or_skip!(Rig::loopback(COMPILER));
    let program = compile(&rig, "hangs", &["-libverbs"]);
    let run = |mistake| trace(&rig, &["--", &program, mistake, "4"]);

    let output = run("no-receive").expect_failure();
    assert_line(&output, &["no call has begun or ended for 2"]);
    let refused = ["1 send is not complete", "RNR NAK", "has not posted any"];
    assert_line(&output, &refused);

    let output = run("wrong-rkey").expect_success();
    assert_line(&output, &["** QP", "NAK: remote access error"]);
    let refused = ["= {wr_id=0x7, REM_ACCESS_ERR", "after ", "wire ", "peer "];
    assert_line(&output, &refused);
    assert!(!output.contains("wire and peer"), "{output}");

    let output = run("lost-wakeup").expect_failure();
    assert_line(&output, &["is in ibv_get_cq_event(channel=", " since 2"]);
    let unpolled = ["1 received", "not polled", "poll the CQ once more"];
    assert_line(&output, &unpolled);

    let file = |name| rig.dir().join(name).to_string_lossy().into_owned();
    let (lines, timeline) = (file("lines"), file("hang.pftrace"));
    let files = ["-o", &lines, "--perfetto", &timeline];
    trace(
        &rig,
        &[&files[..], &["--", &program, "peer-died", "4"]].concat(),
    )
    .expect_success();
    let output = std::fs::read_to_string(&lines).expect("lines");
    assert_line(&output, &["rocade trace: process ", " has ended"]);
    assert_line(&output, &["** QP", "timeout: no answer to PSN 0x0 for"]);
    assert_line(&output, &["** QP", "timeout: ", "(8 in a row)"]);
    assert_line(
        &output,
        &["** QP", "RDMA_WRITE_ONLY", "sent again: no answer for"],
    );
    assert_line(&output, &["RETRY_EXC_ERR", "retransmission (7)"]);
    let page = rig.rocade(&["trace", "show", &timeline, "-o", "-"]);
    let page = page.expect_success();
    assert!(
        page.contains("\"timeout: no answer to PSN 0x0"),
        "no instant"
    );
}

#[test]
fn a_timeline_is_written_and_drawn() {
    let rig = or_skip!(Rig::loopback(UTILS));
    let file = rig.dir().join("x.pftrace").to_string_lossy().into_owned();
    let script = pair("ibv_rc_pingpong -g 0 -n 20 -p PORT");
    trace(
        &rig,
        &["--perfetto", &file, "--", "sh", "-c", script.as_str()],
    )
    .expect_success();
    let shown = rig.rocade(&["trace", "show", &file]).expect_success();
    assert_line(&shown, &["x.html: ", "slices and packets"]);
    let page = std::fs::read_to_string(rig.dir().join("x.html")).expect("a page");
    for word in [
        "ibv_open_device",
        "SEND_LAST sent",
        "\"wire\"",
        "\"peer\"",
        "ibv_rc_pingpong",
    ] {
        assert!(page.contains(word), "{word} is not in the page");
    }
    assert!(!page.contains("http"), "the page needs a network");
}
