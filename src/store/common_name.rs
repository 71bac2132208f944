//! The name that a certificate is for: etcd takes it for the user's where it asks clients for certificates. Knows
//! nothing of files, and does not ask whether the certificate is any good: etcd does.

use der::asn1::AnyRef;
use der::{Decode as _, Reader as _, SliceReader, Tag, Tagged as _};

/// 2.5.4.3 (X.520), as DER has it.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The subject's common name; of several the last, as Go's `pkix.Name` has it.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let certificate = AnyRef::from_der(certificate).ok()?;
    let signed = *parts(certificate)?.first()?;
    // RFC 5280, 4.1: the version may be left out; then serial number, algorithm, issuer, validity, subject.
    let fields = parts(signed)?;
    let versioned = matches!(fields.first()?.tag(), Tag::ContextSpecific { .. });
    let subject = *fields.get(4 + usize::from(versioned))?;
    let sets = parts(subject)?.into_iter().filter_map(parts).flatten();
    let mut named = sets.rev().filter_map(|attribute| match parts(attribute)?.as_slice() {
        [kind, value] if kind.value() == COMMON_NAME => text(*value),
        _ => None,
    });
    named.next().filter(|name| !name.is_empty())
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
