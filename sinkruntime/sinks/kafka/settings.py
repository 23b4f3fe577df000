"""Which settings of librdkafka a manifest may give, and why others are refused.

Read by the options when a manifest is loaded. Needs no client library: what a setting's value must be, librdkafka
itself says when the producer is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

_OURS = "is set by the sink; leave it out"
_REASONS: Mapping[str, str] = {
    "bootstrap.servers": "is the option `bootstrapServers`",
    "metadata.broker.list": "is the option `bootstrapServers`",
    "transactional.id": "would let two writers share a transaction; see `transactionalIdPrefix`",
    "transaction.timeout.ms": "is the option `transactionTimeout`",
    "enable.idempotence": "must stay on: without it the broker keeps what is sent twice",
    "acks": "must stay `all`: rows that one broker has are lost with it",
    "request.required.acks": "must stay `all`: rows that one broker has are lost with it",
    "enable.gapless.guarantee": _OURS,
    "message.send.max.retries": "must stay unbounded: a row that was given up would be lost",
    "retries": "must stay unbounded: a row that was given up would be lost",
    "message.timeout.ms": "is bound to `transactionTimeout`",
    "delivery.timeout.ms": "is bound to `transactionTimeout`",
    "compression.codec": "is the option `compression`",
    "compression.type": "is the option `compression`",
    "partitioner": "is the option `partitioner`",
    "statistics.interval.ms": _OURS,
    "delivery.report.only.error": _OURS,
    "dr_cb": _OURS,
    "dr_msg_cb": _OURS,
    "on_delivery": _OURS,
    "stats_cb": _OURS,
    "error_cb": _OURS,
    "logger": _OURS,
    "log_cb": _OURS,
    "plugin.library.paths": "would load code into the writers",
    "sasl.jaas.config": "is of Java's clients; give `sasl.username`, and `sasl.password` through `optionsFrom`",
    "schema.registry.url": "is the option `schemaRegistry`",
    "isolation.level": "belongs to consumers",
    "group.id": "belongs to consumers",
}

#: What the committer's own connection can do, beside the producer's; it sends the EndTxn.
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: `ssl.*` that both sides understand. Keystores and engines are librdkafka's alone.
TLS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "security.protocol": PROTOCOLS,
    "sasl.mechanism": MECHANISMS,
    "sasl.mechanisms": MECHANISMS,
    "ssl.endpoint.identification.algorithm": ("https", "none"),
    "enable.ssl.certificate.verification": ("true", "false"),
}
_SASL = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_IN_FLIGHT = frozenset({"max.in.flight", "max.in.flight.requests.per.connection"})
IN_FLIGHT_MAX = 5


def problem_of(name: str, value: str) -> str:
    """Why this setting is refused; "" when it is not. Repeats no value."""
    if name in _REASONS:
        return _REASONS[name]
    if name in _CHOICES:
        known = {choice.lower() for choice in _CHOICES[name]}
        return "" if value.lower() in known else f"can be {', '.join(_CHOICES[name])}"
    if name in _IN_FLIGHT:
        fits = value.isdecimal() and 1 <= int(value) <= IN_FLIGHT_MAX
        return "" if fits else f"is 1 to {IN_FLIGHT_MAX}: beyond, order is lost"
    if name.startswith("sasl.") and name not in _SASL:
        return f"is not supported; SASL works with {', '.join(MECHANISMS)}, a username and a password"
    if name.startswith("ssl.") and name not in TLS:
        return f"is not supported; TLS takes {', '.join(sorted(TLS))}"
    return ""
