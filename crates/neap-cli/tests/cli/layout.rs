//! `neap layout`: tables in and out, exit codes, hostile tables.

use super::support::Bench;
use std::fs;

const CHAIN: &str = "id,lower,upper,size\na,0,2,4\nb,1,3,1\nc,2,4,5\nd,3,5,2\n";

#[test]
fn offsets_are_written() {
    let bench = Bench::new();
    bench.write("in.csv", CHAIN.as_bytes());
    let ran = bench
        .neap("layout in.csv --capacity 7 --output out.csv --timeout 5")
        .ok();
    assert!(ran.stdout.contains("lower bound 7 bytes"), "{}", ran.stdout);
    let text = fs::read_to_string(bench.path("out.csv")).unwrap();
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some("id,lower,upper,size,offset"));
    let rows: Vec<Vec<u64>> = rows
        .map(|r| r.split(',').skip(1).map(|f| f.parse().unwrap()).collect())
        .collect();
    assert_eq!(rows.len(), 4);
    for (i, a) in rows.iter().enumerate() {
        assert!(a[2] + a[3] <= 7);
        for b in &rows[..i] {
            let together = a[0].max(b[0]) < a[1].min(b[1]);
            assert!(!together || a[3] + a[2] <= b[3] || b[3] + b[2] <= a[3]);
        }
    }
    // What was written can be read; its offsets are found anew.
    let report = bench.json("layout out.csv --minimize --json -");
    assert_eq!(report["height_bytes"], 7);
    assert_eq!(report["lower_bound_bytes"], 7);
    assert_eq!(report["optimal"], true);
    assert_eq!(bench.leftovers(), [""; 0]);
}

#[test]
fn columns_in_another_order_and_alignments() {
    let bench = Bench::new();
    let text = "size,alignment,id,end,start\n3,4,x,2,0\n3,4,y,3,1\n";
    bench.write("in.csv", text.as_bytes());
    bench
        .neap("layout in.csv --minimize --output out.csv --json r.json")
        .ok();
    let report = fs::read_to_string(bench.path("r.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["lower_bound_bytes"], 6);
    assert_eq!(report["height_bytes"], 7);
    let out = fs::read_to_string(bench.path("out.csv")).unwrap();
    assert!(out.starts_with("id,lower,upper,size,alignment,offset\nx,0,2,3,4,"));
    // Proven, though no more than 6 bytes are live at once.
    bench
        .neap("layout in.csv --capacity 6 --output none.csv")
        .fails(
            3,
            &["no layout fits 6 bytes", "proven", "6 are live at once"],
        );
    bench
        .neap("layout in.csv --capacity 5 --minimize --output none.csv")
        .fails(3, &["no layout fits 5 bytes", "6 are live at once"]);
    assert!(!bench.path("none.csv").exists());
}

#[test]
fn running_out_of_time_is_no_proof() {
    let bench = Bench::new();
    let mut text = String::from("id,lower,upper,size\n");
    for i in 0..3000u64 {
        let (begin, bytes) = (i * 7919 % 10_007, 1 + i * i % 997);
        text += &format!("{i},{begin},{},{bytes}\n", begin + 1 + i * 31 % 900);
    }
    bench.write("in.csv", text.as_bytes());
    let report = bench.json("layout in.csv --minimize --timeout 0.2 --json -");
    let bound = report["proven_lower_bound_bytes"].as_u64().unwrap();
    assert!(bound >= report["lower_bound_bytes"].as_u64().unwrap());
    bench
        .neap(&format!(
            "layout in.csv --capacity {bound} --timeout 0.000001 --output out.csv"
        ))
        .fails(3, &["was found in", "does not prove"]);
    assert!(!bench.path("out.csv").exists());
}

#[test]
fn hostile_tables() {
    let bench = Bench::new();
    let row =
        |row: &str| format!("id,lower,upper,size,alignment\nok,0,1,1,1\n{row}\n").into_bytes();
    let cases: [(&str, Vec<u8>, &str); 13] = [
        ("empty", Vec::new(), "header"),
        ("binary", vec![0xff, 0xfe, 0, 1], "UTF-8"),
        ("text", b"this is no table".to_vec(), "unknown column"),
        ("column", b"id,lower,upper\na,0,1".to_vec(), "'size'"),
        ("order", row("a,5,5,1,1"), "line 3: lower 5"),
        ("zero", row("a,0,5,0,1"), "size is 0"),
        ("negative", row("a,0,5,-1,1"), "size '-1'"),
        ("huge", row("a,0,5,99999999999999999999,1"), "size '9999"),
        ("sum", row("a,0,5,9223372036854775807,1"), "add up"),
        ("twice", row("ok,0,5,1,1"), "'ok' is there twice"),
        ("short", row("a,0,5"), "3 fields"),
        ("align", row("a,0,5,1,12"), "alignment 12"),
        ("align0", row("a,0,5,1,0"), "alignment 0"),
    ];
    for (name, bytes, part) in cases {
        bench.write("bad.csv", &bytes);
        bench.write("out.csv", b"old");
        let ran = bench.neap("layout bad.csv --capacity 100 --output out.csv");
        let line = ran.fails(2, &["bad.csv", part]);
        assert!(line.len() < 200, "{name}: {line}");
        assert_eq!(fs::read(bench.path("out.csv")).unwrap(), b"old", "{name}");
    }
    fs::create_dir(bench.path("folder.csv")).unwrap();
    for file in ["absent.csv", "folder.csv"] {
        bench
            .neap(&format!("layout {file} --minimize"))
            .fails(2, &[file]);
    }
    bench.write("in.csv", CHAIN.as_bytes());
    for (args, part) in [
        ("layout in.csv", "--capacity"),
        ("layout in.csv --capacity -1", "-1"),
        ("layout in.csv --capacity 7 --timeout 0", "--timeout"),
        ("layout in.csv --capacity 7 --timeout soon", "--timeout"),
        (
            "layout in.csv --capacity 7 --output nowhere/out.csv",
            "nowhere",
        ),
        ("layout in.csv --capacity 7 --output folder.csv", "folder"),
    ] {
        bench.neap(args).fails(2, &[part]);
    }
    assert_eq!(bench.leftovers(), [""; 0]);
}
