-- +goose Up
-- The outbox of github.com/joblock/toolkit/outbox. state: 0 pending, 1 sent, 2 refused. due_ms: when a pending row that waits
-- is tried again. expires_ms: when a sent row is deleted. All times are in Unix milliseconds by the database's clock.
CREATE TABLE IF NOT EXISTS joblock_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid        varchar(36) NOT NULL UNIQUE,
    state      smallint NOT NULL DEFAULT 0,
    due_ms     bigint NOT NULL DEFAULT 0,
    expires_ms bigint NOT NULL DEFAULT 0,
    order_key  varchar(512) NOT NULL,
    task_type  text NOT NULL,
    payload    bytea NOT NULL,
    job        text NOT NULL,
    created_ms bigint NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    error      text NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS joblock_outbox_pending ON joblock_outbox (id) WHERE state = 0;
CREATE INDEX IF NOT EXISTS joblock_outbox_waiting ON joblock_outbox (due_ms) WHERE state = 0 AND due_ms > 0;
CREATE INDEX IF NOT EXISTS joblock_outbox_sent ON joblock_outbox (expires_ms) WHERE state = 1;
CREATE INDEX IF NOT EXISTS joblock_outbox_refused ON joblock_outbox (id) WHERE state = 2;
