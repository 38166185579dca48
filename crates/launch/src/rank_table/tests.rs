//! Rank tables against the one of seed 002, and what holds for all of them.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::{a, applies, b, c, d, ranks};
use crate::Gang;
use crate::tests::{ascend_gang, spec};

/// The table of seed 002, which is also an example.
const SEED: &str = include_str!("../../../../examples/compat/apulis-mindspore/hccl.json");

/// The two Atlas servers of seed 002.
fn with_the_addresses_of_the_seed(gang: &mut Gang) {
    for (rank, (member, server)) in (0..).zip(gang.members.iter_mut().zip([6, 2])) {
        member.address.ip = Ipv4Addr::new(192, 168, 3, server).into();
        for (number, device) in &mut member.devices {
            let (net, host) = (10 * (1 + *number as u8 % 4), 1 + 2 * rank + *number as u8 / 4);
            device.ip = Some(Ipv4Addr::new(192, 168, net, host).into());
        }
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_table_of_the_seed_comes_out_of_its_addresses() {
    let spec = spec(json!({"nodes": 2, "resources": {"gpus": "ascend:8"}}));
    let mut gang = ascend_gang(&spec);
    with_the_addresses_of_the_seed(&mut gang);
    assert_eq!(parse(&a(&gang)), parse(SEED));
    // No value has a space in it, so this compares the order of fields, too.
    let packed = |text: &str| text.split_whitespace().collect::<String>();
    assert_eq!(packed(&a(&gang)), packed(SEED));
}

#[test]
fn the_other_forms() {
    let spec = spec(json!({"nodes": 2, "resources": {"gpus": "ascend:2"}}));
    let gang = ascend_gang(&spec);
    insta::assert_snapshot!("b", b(&gang));
    insta::assert_snapshot!("c", c(&gang));
    insta::assert_snapshot!("d", d(&gang));
}

#[test]
fn devices_keep_their_drivers_numbers_and_the_rank_is_global() {
    let spec = spec(json!({"nodes": 2, "resources": {"gpus": "ascend:2"}}));
    let mut gang = ascend_gang(&spec);
    for (number, _) in &mut gang.members[1].devices {
        *number = 7 - *number;
    }
    let table = parse(&c(&gang));
    let second = &table["server_list"][1]["device"];
    assert_eq!((&second[0]["device_id"], &second[0]["rank_id"]), (&json!("6"), &json!("2")));
    assert_eq!((&second[1]["device_id"], &second[1]["rank_id"]), (&json!("7"), &json!("3")));
    assert_eq!((ranks(&gang, 0), ranks(&gang, 1)), (vec![0, 1], vec![2, 3]));
}

#[test]
fn members_on_one_host_are_one_server() {
    let spec = spec(json!({"nodes": 3, "resources": {"gpus": "ascend:2"}}));
    let mut gang = ascend_gang(&spec);
    gang.members[2].address.ip = gang.members[0].address.ip;
    for (number, _) in &mut gang.members[2].devices {
        *number += 2;
    }
    let table = parse(&c(&gang));
    assert_eq!(table["server_count"], "2");
    assert_eq!(table["server_list"][0]["device"].as_array().unwrap().len(), 4);
    assert_eq!((ranks(&gang, 0), ranks(&gang, 1), ranks(&gang, 2)), (vec![0, 1], vec![4, 5], vec![2, 3]));
    assert_eq!(parse(&a(&gang))["group_list"][0]["server_num"], "2");
}

#[test]
fn a_device_without_an_address_has_an_empty_one() {
    let spec = spec(json!({"resources": {"gpus": "ascend:1"}}));
    let mut gang = ascend_gang(&spec);
    gang.members[0].devices[0].1.ip = None;
    assert_eq!(parse(&c(&gang))["server_list"][0]["device"][0]["device_ip"], "");
}

#[test]
fn there_is_no_table_of_other_devices() {
    let with = spec(json!({"resources": {"gpus": "ascend:1"}}));
    let without = spec(json!({"resources": {"gpus": 1}}));
    assert!(applies(&ascend_gang(&with)));
    assert!(!applies(&crate::tests::gang(&without)));
}
