//! What a certificate says of itself: whom it is for, which etcd takes for the user where it asks clients for
//! certificates, and from when to when. Knows nothing of files, and does not ask whether it is any good: etcd does.

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode as _, Reader as _, SliceReader, Tag, Tagged as _};
use std::time::{SystemTime, UNIX_EPOCH};

/// 2.5.4.3 (X.520), as DER has it.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Where they stand, if the version is left out (RFC 5280, 4.1): serial number, algorithm, issuer, validity, subject.
const VALIDITY: usize = 3;
const SUBJECT: usize = 4;

/// The subject's common name; of several the last, as Go's `pkix.Name` has it.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let sets = parts(field(certificate, SUBJECT)?)?
        .into_iter()
        .filter_map(parts)
        .flatten();
    let mut named = sets.rev().filter_map(|attribute| match parts(attribute)?.as_slice() {
        [kind, value] if kind.value() == COMMON_NAME => text(*value),
        _ => None,
    });
    named.next().filter(|name| !name.is_empty())
}

/// The first instant of its time, and the last.
pub(super) fn validity(certificate: &[u8]) -> Option<[SystemTime; 2]> {
    let times = parts(field(certificate, VALIDITY)?)?;
    let [from, to] = times.as_slice() else { return None };
    Some([time(*from)?, time(*to)?])
}

fn field(certificate: &[u8], number: usize) -> Option<AnyRef<'_>> {
    let certificate = AnyRef::from_der(certificate).ok()?;
    let signed = *parts(certificate)?.first()?;
    let fields = parts(signed)?;
    let versioned = matches!(fields.first()?.tag(), Tag::ContextSpecific { .. });
    fields.get(number + usize::from(versioned)).copied()
}

fn time(value: AnyRef<'_>) -> Option<SystemTime> {
    let since = match value.tag() {
        Tag::UtcTime => value.decode_as::<UtcTime>().ok()?.to_unix_duration(),
        Tag::GeneralizedTime => value.decode_as::<GeneralizedTime>().ok()?.to_unix_duration(),
        _ => return None,
    };
    Some(UNIX_EPOCH + since)
}

/// What is in a SEQUENCE or a SET.
fn parts(whole: AnyRef<'_>) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(whole.value()).ok()?;
    let mut parts = Vec::new();
    while !reader.is_finished() {
        parts.push(reader.decode().ok()?);
    }
    Some(parts)
}

fn text(value: AnyRef<'_>) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => {
            std::str::from_utf8(value.value()).ok().map(ToOwned::to_owned)
        }
        _ => None,
    }
}
