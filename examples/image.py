# %% [markdown]
# # image
# %%
print(1)
