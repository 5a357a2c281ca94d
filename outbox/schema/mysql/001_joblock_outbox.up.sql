-- +goose Up
-- The outbox of github.com/joblock/toolkit/outbox. state: 0 pending, 1 sent, 2 refused. due_ms: when a pending row that waits
-- is tried again. expires_ms: when a sent row is deleted. All times are in Unix milliseconds by the database's clock.
CREATE TABLE IF NOT EXISTS joblock_outbox (
    id         bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    uid        varchar(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    state      smallint NOT NULL DEFAULT 0,
    due_ms     bigint NOT NULL DEFAULT 0,
    expires_ms bigint NOT NULL DEFAULT 0,
    order_key  varbinary(512) NOT NULL,
    task_type  varbinary(1024) NOT NULL,
    payload    longblob NOT NULL,
    job        longblob NOT NULL,
    created_ms bigint NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    error      text CHARACTER SET utf8mb4 NOT NULL,
    KEY joblock_outbox_pending (state, id),
    KEY joblock_outbox_waiting (state, due_ms),
    KEY joblock_outbox_sent (state, expires_ms)
) ENGINE = InnoDB;
